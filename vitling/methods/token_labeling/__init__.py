"""Token labeling: every token learns the class of what it shows, from label maps that another model made."""

from vitling.methods.token_labeling.method import TokenLabeling, mix_tokens, token_label_loss

__all__ = ["TokenLabeling", "mix_tokens", "token_label_loss"]
