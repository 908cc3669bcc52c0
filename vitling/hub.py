"""The Hugging Face hub: a folder goes up, a folder comes down. The network is used by these two functions alone."""

from pathlib import Path

from vitling.errors import UserError

PREFIX = "hf-hub:"
FILES = ("config.json", "model.safetensors")


def check_push(name: str) -> None:
    """Whether a push could succeed, without asking the hub: called before the work, not after it."""
    from huggingface_hub import get_token

    _check_name(name, "--push")
    if get_token() is None:
        raise UserError(
            f"--push {name} needs a token of the Hugging Face hub; run `hf auth login`, or set HF_TOKEN to one that may write."
        )


def push_folder(folder: Path, name: str) -> str:
    """Upload a folder as one commit and return its address. A repository that is new is private until its owner opens it."""
    from huggingface_hub import HfApi

    check_push(name)
    api = HfApi()
    try:
        repository = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a model trained with vitling")
    except Exception as error:  # the hub client raises many kinds: no network, no access, a refused token
        raise UserError(f"{folder} is written, but could not be pushed to {name}: {_reason(error)}") from None
    return str(repository)


def fetch_folder(source: str) -> Path:
    """The local copy of `hf-hub:owner/name`; only the two files that a model is made of are fetched, and none is run."""
    from huggingface_hub import snapshot_download

    name = source.removeprefix(PREFIX)
    _check_name(name, "the hub name")
    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except Exception as error:
        raise UserError(f"{source} could not be had from the hub: {_reason(error)}") from None


def _check_name(name: str, what: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        allowed = name.count("/") == 1
    except HFValidationError:
        allowed = False
    if not allowed:
        raise UserError(
            f"{what} {name!r} is no name of the hub; write OWNER/NAME in letters, digits, '-', '_' and '.', "
            "such as alice/flowers-dhvt."
        )


def _reason(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text.rstrip(".") + "."
