"""What the documentation says of the papers' recipes holds for the recipes."""

from pathlib import Path

from vitling.papers import PAPERS
from vitling.recipes import named_recipes

ROOT = Path(__file__).parents[2]
TRAINED = {
    name: recipe
    for name, build in named_recipes().items()
    if name.split("/")[0] in PAPERS and "nano" not in name
    for recipe in [build()]
    if not recipe.init  # fine-tuning is shorter
}


def test_the_papers_train_for_240_to_500_epochs():
    assert {min(recipe.epochs for recipe in TRAINED.values()), max(r.epochs for r in TRAINED.values())} == {240, 500}
    assert "the papers: 240 to 500" in (ROOT / "docs" / "planning.md").read_text()


def test_recipes_of_300_epochs_mix_images_unless_labels_come_from_maps():
    for name, recipe in TRAINED.items():
        if recipe.epochs in (300, 310):
            mixed = {"mixup", "cutmix"} <= recipe.method_args.keys()
            assert mixed == (recipe.method == "supervised"), name
    assert "those with LV-ViT's token\nlabels do not" in (ROOT / "docs" / "methods.md").read_text()


def test_claims_are_no_wider_than_what_was_compared():
    readme = (ROOT / "README.md").read_text()
    assert "networks and losses equal their authors' releases number for number" in readme
    pages = [readme, *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]
    assert not any("far more data" in page for page in pages)  # LV-ViT's annotator saw ImageNet alone
    assert "every table of the five papers and" not in (ROOT / "CHANGELOG.md").read_text()
