"""The Hugging Face hub: a folder goes up. How one comes down is in `runs.hub`."""

from pathlib import Path

from vitling.errors import UserError, first_line
from vitling.runs.hub import check_name


def check_push(name: str) -> None:
    """Whether a push could succeed, without asking the hub: called before the work, not after it."""
    from huggingface_hub import get_token  # of the extra hub

    check_name(name, "push")
    if get_token() is None:
        raise UserError(
            f"push={name} needs a token of the Hugging Face hub; run `hf auth login`, or set HF_TOKEN to one that may write."
        )


def push_folder(folder: Path, name: str) -> str:
    """Upload a folder as one commit and return its address. A repository that is new is private until its owner opens it."""
    from huggingface_hub import HfApi  # of the extra hub

    check_push(name)
    api = HfApi()
    try:
        repository = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a model trained with vitling")
    except Exception as error:  # the hub client raises many kinds: no network, no access, a refused token
        raise UserError(f"{folder} is written, but could not be pushed to {name}: {first_line(error)}") from None
    return str(repository)
