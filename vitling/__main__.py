from vitling.cli.main import main

main()
