"""What is said about a command that was typed wrong."""

import difflib
from pathlib import Path
from typing import Any

from covey.config.values import ENDINGS, setting_meant


def usage_sentence(misuse: Any) -> str:
    """Return one sentence about a parser's error: what was typed, what was meant, and where to look."""
    context = misuse.ctx
    path = context.command_path if context is not None else "covey"
    option = getattr(misuse, "option_name", None)
    if option is not None and "No such option" in misuse.format_message():
        return _unknown_option(option, context, path)
    commands = getattr(getattr(context, "command", None), "commands", {})
    _, quote, rest = misuse.format_message().partition("No such command '")
    if quote:
        name = rest.partition("'")[0]
        close = difflib.get_close_matches(name, commands, n=1)
        hint = f" Did you mean '{path} {close[0]}'?" if close else ""
        return f"There is no command '{path} {name}'.{hint} Commands: {', '.join(commands)}."
    message = misuse.format_message().strip()
    end = "" if message.endswith((".", "?")) else "."
    return f"{message}{end}{_instead(message, context)} See: {path} --help"


def _instead(message: str, context: Any) -> str:
    """Return what to type instead: the flag for a word without one, or the command's example where a flag lacks."""
    command: Any = getattr(context, "command", None)
    _, extra, words = message.partition("Got unexpected extra argument")
    if extra:
        flags = {flag for one in command.params for flag in one.opts}
        word = words.partition("(")[2].rstrip(").").split(" ")[0]
        flag = "--dataset" if Path(word).suffix.lower() in ENDINGS else "--method"
        return f" Did you mean {flag} {word}?" if flag in flags else ""
    _, example, shown = (getattr(command, "help", None) or "").partition("Example: ")
    if example and message.startswith("Missing"):
        return f" Example: {' '.join(shown.split())}."
    return ""


def _unknown_option(option: str, context: Any, path: str) -> str:
    """Return the sentence about an unknown flag: a flag that is near, or the setting that is meant."""
    flags = [flag for one in context.command.params for flag in one.opts if flag.startswith("--")]
    word = option.lstrip("-")
    meant = setting_meant(word)
    if meant is not None and f"--{meant}" in flags:
        hint = f" Did you mean --{meant}?"
    elif meant is not None and "--set" in flags:
        hint = f" Did you mean --set {meant}=VALUE?"
    else:
        close = difflib.get_close_matches(option, [flag for flag in flags if flag != "--help"], n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
    if path == "covey run" and word in ("seeds", "methods"):
        hint += " Several are run by covey compare."
    return f"'{path}' has no option {option}.{hint} See: {path} --help"
