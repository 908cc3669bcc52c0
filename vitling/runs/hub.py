"""The Hugging Face hub: a folder comes down. Only the files of a model are fetched, and none is run."""

from pathlib import Path

from vitling.errors import UserError

PREFIX = "hf-hub:"


FILES = ("config.json", "model.safetensors")


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
