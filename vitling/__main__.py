from vitling.cli import main

main()
