"""The text of an answer, as its tokens come."""

from .. import stopping
from ..tokenizer import StreamDecoder


class Writer:
    """`push(token)` adds to `text` what may be shown; a stop string is never shown, nor the beginning of one."""

    def __init__(self, tokenizer, prompt_ids, params):
        self.text = ""
        self._decoder = StreamDecoder(tokenizer, prompt_ids, params.skip_special_tokens)
        self._stops = stopping.StopStrings(params.stop)
        self._include = params.include_stop_str_in_output

    def push(self, *token_ids, stops=True):
        """The stop string that has come, or None; with `stops` False, none is looked for yet."""
        new = self._decoder.push(*token_ids)
        if self._stops.strings:
            return self._show(new, stops)
        self.text += new
        return None

    def finish(self, stops=True):
        """Show what was held back; the stop string that is completed by it, or None."""
        found = self._show(self._decoder.flush(), stops)
        self.text += self._stops.flush()
        return found

    def _show(self, new, stops):
        if not new:
            return None
        if not stops:
            self.text += self._stops.flush() + new
            return None
        shown, stopped = self._stops.push(new)
        self.text += shown
        if not stopped:
            return None
        if self._include:
            self.text += self._stops.found
        return self._stops.found
