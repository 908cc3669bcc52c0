"""What the documentation of the Python API says is what happens."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python_api.md"


@pytest.mark.slow
def test_the_blocks_of_the_page_run_one_after_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out
    assert "Did you mean digits/vit_nano" in printed
    assert names["run"].finished
    assert names["search"].best_params_["settings"] in names["grid"]["settings"]
