"""The Hugging Face hub: a folder comes down. Only the files of a model are fetched, and none is run."""

from pathlib import Path

from vitling.errors import UserError, first_line

PREFIX = "hf-hub:"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that there is


def fetch_folder(source: str) -> Path:
    """The local copy of `hf-hub:owner/name`, or of `hf-hub:owner/name@revision`: weights, and config.json where there is one."""
    name, _, revision = source.removeprefix(PREFIX).partition("@")
    check_name(name, "the hub name")
    try:
        _fetch(name, revision, "config.json")
        weights = next((path for file in WEIGHTS if (path := _fetch(name, revision, file))), None)
    except Exception as error:  # the hub client raises many kinds: no network, no such name, no access
        raise UserError(f"{source} could not be downloaded: {first_line(error)}") from None
    if weights is None:
        raise UserError(f"{source} holds no weights; {' or '.join(WEIGHTS)} would be read.")
    return weights.parent


def _fetch(name: str, revision: str, file: str) -> Path | None:
    """None where the repository has no such file."""
    from huggingface_hub import hf_hub_download  # of the extra hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file, revision=revision or None))
    except LocalEntryNotFoundError:  # one of the other kind, though it means that the hub could not be asked
        raise
    except EntryNotFoundError:
        return None


def check_name(name: str, what: str) -> None:
    """Refuse what is not OWNER/NAME; `what` is the setting that names it."""
    from huggingface_hub.errors import HFValidationError  # of the extra hub
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        allowed = name.count("/") == 1
    except HFValidationError:
        allowed = False
    if not allowed:
        raise UserError(
            f"{what} {name!r} is not a hub name; write OWNER/NAME in letters, digits, '-', '_' and '.', "
            "such as alice/flowers-dhvt."
        )
