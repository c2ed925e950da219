"""``covey completion``: print a completion script for a shell."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SUMMARY = "print a script that completes commands, options and values in a shell"

EXAMPLES = """\
The script completes file names where an argument is a file or a value without fixed choices.

examples:
  eval "$(covey completion bash)"                                     in ~/.bashrc
  covey completion zsh > "${fpath[1]}/_covey"
  covey completion fish > ~/.config/fish/completions/covey.fish
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "shell", metavar="SHELL", choices=tuple(SCRIPTS), help="the shell that sources the script"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from covey.cli import make_parser

    print(SCRIPTS[options.shell](list(_commands(make_parser()))), end="")


@dataclass(frozen=True)
class _Option:
    """An option, or a positional argument if it has no names."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]
    """Valid values; empty if the value is a file name or arbitrary."""


@dataclass(frozen=True)
class _Command:
    name: str
    help: str
    options: tuple[_Option, ...]

    @property
    def names(self) -> list[str]:
        return [name for option in self.options for name in option.names]


def _commands(parser: argparse.ArgumentParser) -> Iterator[_Command]:
    """Yield the commands of a parser; the first has no name and the options of the program."""
    yield _Command("", "", tuple(map(_option, _visible(parser))))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, each in action.choices.items():
                yield _Command(name, helps.get(name, ""), tuple(map(_option, _visible(each))))


def _visible(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [
        action
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction) and action.help != argparse.SUPPRESS
    ]


def _option(action: argparse.Action) -> _Option:
    text = (action.help or "").replace("%(default)s", str(action.default))
    first = re.split(r"[;:(]", text.replace("%%", "%"))[0]
    return _Option(
        names=tuple(action.option_strings),
        help=" ".join(first.split()),
        takes_value=action.nargs != 0,
        choices=tuple(map(str, action.choices or ())),
    )


def _bash(commands: list[_Command]) -> str:
    others = commands[1:]
    options, values, words = [], [], []
    for command in commands:
        options.append(f"    {command.name or '-'}) options={_quoted(command.names)} ;;")
        by_choices: dict[tuple[str, ...], list[str]] = {}
        for option in command.options:
            if not option.names and option.choices:
                words.append(f"    {command.name},*) values={_quoted(option.choices)} ;;")
            elif option.takes_value:
                by_choices.setdefault(option.choices, []).extend(option.names)
        for choices, found in by_choices.items():
            if found:
                pattern = "|".join(f"{command.name},{name}" for name in found)
                values.append(f"    {pattern}) values={_quoted(choices)} is_value=1 ;;")
    values += words  # after the options, because their patterns match any word
    names = _quoted([each.name for each in others])
    lines = "\n".join
    return f"""\
# Completion of covey for bash.
_covey() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local command= each= options= values= is_value= names={names}
  # bash divides --mode=append into three words.
  if [[ $word == = ]]; then word=; elif [[ $previous == = ]]; then
    previous=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    if [[ " $names " == *" $each "* ]]; then command=$each; break; fi
  done
  case ${{command:--}} in
{lines(options)}
  esac
  case $command,$previous in
{lines(values)}
  esac
  if [[ $word == -* && -z $is_value ]]; then values=$options
  elif [[ -z $command && -z $is_value ]]; then values=$names
  fi
  if [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$word"))
  else
    compopt -o filenames 2>/dev/null || :
    local IFS=$'\\n'
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -F _covey covey
"""


def _zsh(commands: list[_Command]) -> str:
    program, *others = commands
    described = "\n".join(f"    {shlex.quote(_colon(each.name, each.help))}" for each in others)
    cases = "\n".join(
        f"    {each.name})\n      _arguments -s \\\n{_zsh_arguments(each)} ;;" for each in others
    )
    return f"""\
#compdef covey
# Completion of covey for zsh.
_covey() {{
  local context state line curcontext=$curcontext
  local -a commands
  commands=(
{described}
  )
  _arguments -C \\
{_zsh_arguments(program, trailing=True)}    '1: :->command' '*:: :->arguments'
  case $state in
  (command) _describe command commands ;;
  (arguments)
    curcontext="${{curcontext%:*}}-$words[1]:"
    case $words[1] in
{cases}
    esac ;;
  esac
}}
if [[ $funcstack[1] == _covey ]]; then _covey "$@"; else compdef _covey covey; fi
"""


def _zsh_arguments(command: _Command, *, trailing: bool = False) -> str:
    lines = []
    for option in command.options:
        values = f"({' '.join(option.choices)})" if option.choices else "_files"
        text = _colon("", option.help)[1:].replace("[", "(").replace("]", ")")
        if not option.names:
            lines.append(shlex.quote(f":{text or 'argument'}:{values}"))
            continue
        for name in option.names:
            value = f":value:{values}" if option.takes_value else ""
            equals = "=" if option.takes_value and name[:2] == "--" else ""
            lines.append(shlex.quote(f"*{name}{equals}[{text}]{value}"))
    end = " \\\n" if trailing else ""
    return " \\\n".join(f"    {line}" for line in lines) + end


def _fish(commands: list[_Command]) -> str:
    others = commands[1:]
    lines = ["# Completion of covey for fish."]
    for command in others:
        lines.append(
            "complete -c covey -f -n __fish_use_subcommand "
            f"-a {command.name} -d {_fish_quoted(command.help)}"
        )
    for command in commands:
        where = (
            f"__fish_seen_subcommand_from {command.name}"
            if command.name
            else "__fish_use_subcommand"
        )
        for option in command.options:
            line = f"complete -c covey -n {_fish_quoted(where)}"
            if option.choices:
                line += f" -x -a {_fish_quoted(' '.join(option.choices))}"
            elif option.names and option.takes_value:
                line += " -r -F"
            elif not option.names:
                continue
            for name in option.names:
                line += f" -l {name[2:]}" if name[:2] == "--" else f" -s {name[1:]}"
            lines.append(f"{line} -d {_fish_quoted(option.help)}")
    return "\n".join(lines) + "\n"


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _colon(name: str, text: str) -> str:
    r"""Return ``name:text`` for zsh, which divides at colons."""
    escaped = text.replace("\\", "\\\\").replace(":", "\\:")
    return f"{name}:{escaped}"


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
