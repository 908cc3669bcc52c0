"""A callback that records its calls."""

from vitling.callbacks import Callback


class Recorder(Callback):
    def __init__(self):
        self.messages, self.progress = [], []

    def log(self, message):
        self.messages.append(message)

    def on_progress(self, task, done, total):
        self.progress.append((task, done, total))
