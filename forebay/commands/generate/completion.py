"""What a shell runs to complete a line: it asks `forebay` itself, in the way Typer answers its own scripts.

Typer's own script for bash hands over words as bash splits them, at the colon of `-b localhost:9092`, too. This one hands over the line.
"""

from collections.abc import Mapping
from typing import Final

_BASH: Final = r"""_forebay_completion() {
    local IFS=$'\n' line="${COMP_LINE:0:COMP_POINT}" answer typed head
    COMPREPLY=()
    typed="${line##*[[:space:]]}"
    # readline replaces only what follows the last colon or equals sign of a word.
    head="${typed%"${typed##*[:=]}"}"
    for answer in $(_FOREBAY_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS="$line" "$1" 2>/dev/null); do
        answer="${answer%%$'\t'*}"
        COMPREPLY+=("${answer#"$head"}")
    done
}
complete -o default -F _forebay_completion forebay
"""

_ZSH: Final = r"""#compdef forebay
_forebay_completion() {
    eval "$(_FOREBAY_COMPLETE=complete_zsh _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" forebay 2>/dev/null)"
}
compdef _forebay_completion forebay
"""

_FISH: Final = r"""function __forebay_complete
    env _FOREBAY_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=$argv[1] _TYPER_COMPLETE_ARGS=(commandline -cp) forebay 2>/dev/null
end
complete --command forebay --no-files --arguments "(__forebay_complete get-args)" --condition "__forebay_complete is-args"
"""

SCRIPTS: Final[Mapping[str, str]] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
