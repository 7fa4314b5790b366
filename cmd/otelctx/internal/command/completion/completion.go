// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package completion implements otelctx completion, and what its scripts run to get candidates.
package completion

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
)

// Command implements otelctx completion.
type Command struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish." name:"shell"`
}

// Help returns the text of otelctx completion --help.
func (*Command) Help() string {
	return "Add the line of your shell to its start-up file:\n\n" +
		"  bash:  source <(otelctx completion bash)\n" +
		"  zsh:   source <(otelctx completion zsh)      after compinit\n" +
		"  fish:  otelctx completion fish | source\n\n" +
		"Process ids and service names are completed with those that otelctx list shows."
}

// Run is called by kong.
func (c *Command) Run(s terminal.Streams) error {
	_, err := io.WriteString(s.Stdout, completionScripts[c.Shell])
	return err
}

// Complete is the command that the scripts run to get candidates. Its arguments are the words after
// otelctx, up to the one to complete. It prints one candidate per line, followed by a tab and its
// description, or one of the directives.
const Complete = "__complete"

// These directives tell the shell to complete the word itself.
const (
	completeFiles   = ":files"
	completeProgram = ":command" // the command after --
)

// completionScripts holds the script of each shell. The scripts run [Complete].
var completionScripts = map[string]string{
	"bash": `# Made by otelctx completion bash.
_otelctx() {
	local reply cur=${COMP_WORDS[COMP_CWORD]}
	mapfile -t reply < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
	case ${reply[0]} in
	:files) compopt -o filenames; COMPREPLY=($(compgen -f -- "${cur#=}")) ;;
	:command) compopt -o filenames; COMPREPLY=($(compgen -c -f -- "$cur")) ;;
	*) COMPREPLY=("${reply[@]%%$'\t'*}") ;;
	esac
}
complete -F _otelctx otelctx
`,
	"zsh": `#compdef otelctx
# Made by otelctx completion zsh.
_otelctx() {
	local -a reply candidates
	local line i
	reply=("${(@f)$("$words[1]" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
	case $reply[1] in
	:files)
		[[ $words[CURRENT] == --*=* ]] && compset -P '*='
		_files
		;;
	:command)
		i=${words[(i)--]}
		shift $i words
		((CURRENT -= i))
		_normal
		;;
	*)
		for line in $reply; do candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}"); done
		_describe otelctx candidates
		;;
	esac
}
compdef _otelctx otelctx
`,
	//nolint:dupword // fish closes its blocks with end
	"fish": `# Made by otelctx completion fish.
function __otelctx
	set -l cur (commandline -ct)
	set -l words (commandline -opc) "$cur"
	set -l reply ($words[1] __complete $words[2..] 2>/dev/null)
	switch "$reply[1]"
		case :files
			set -l flag (string match -r '^--[^=]*=' -- "$cur")
			__fish_complete_path (string replace -r '^--[^=]*=' '' -- "$cur") | string replace -r '^' "$flag"
		case :command
			__fish_complete_subcommand --commandline (string split -m1 -- " -- " (commandline -pc))[2]
		case '*'
			printf '%s\n' $reply
	end
end
complete -c otelctx -f -a '(__otelctx)'
`,
}

// Candidates prints the candidates for the last word, or a directive.
func Candidates(s terminal.Streams, model *kong.Application, words []string) error {
	candidates, directive := candidatesOf(model, words)
	if directive != "" {
		_, err := fmt.Fprintln(s.Stdout, directive)
		return err
	}
	for _, value := range slices.Sorted(maps.Keys(candidates)) {
		if _, err := fmt.Fprintf(s.Stdout, "%s\t%s\n", value, candidates[value]); err != nil {
			return err
		}
	}
	return nil
}

// candidatesOf returns the completions of the last word with their descriptions, or a directive.
func candidatesOf(model *kong.Application, words []string) (candidates map[string]string, directive string) {
	if len(words) == 0 {
		return nil, ""
	}
	candidates = map[string]string{}
	current, before := words[len(words)-1], words[:len(words)-1]
	defer func() {
		maps.DeleteFunc(candidates, func(value, _ string) bool { return !strings.HasPrefix(value, current) })
	}()
	commands := model.Leaves(true)
	if len(before) == 0 {
		for _, c := range commands {
			candidates[c.Name] = c.Help
		}
		addFlags(candidates, model.Flags)
		return candidates, ""
	}
	i := slices.IndexFunc(commands, func(c *kong.Node) bool { return c.Name == before[0] })
	if i < 0 {
		return nil, ""
	}
	command := commands[i]
	if command.Name == "record" && slices.Contains(before, "--") {
		return nil, completeProgram
	}
	flags := slices.Concat(command.Flags, model.Flags)
	prefix := ""
	switch name, value, joined := strings.Cut(current, "="); {
	case joined && strings.HasPrefix(name, "--"):
		prefix = name + "="
		before = append(before, name)
	case current == "=": // bash treats = as a separate word.
		current = value
	case before[len(before)-1] == "=":
		before = before[:len(before)-1]
	}
	last := before[len(before)-1]
	for _, f := range flags {
		if !f.IsBool() && (last == "--"+f.Name || f.Short != 0 && last == "-"+string(f.Short)) {
			return candidates, addValues(candidates, f.Value, prefix)
		}
	}
	if strings.HasPrefix(current, "-") {
		addFlags(candidates, flags)
		return candidates, ""
	}
	for _, p := range command.Positional {
		directive = addValues(candidates, p, "")
	}
	return candidates, directive
}

func addFlags(candidates map[string]string, flags []*kong.Flag) {
	for _, f := range flags {
		candidates["--"+f.Name] = f.Help
		if f.Short != 0 {
			candidates["-"+string(f.Short)] = f.Help
		}
	}
}

// addValues adds the possible values of a flag or argument, each after prefix, or returns a directive.
func addValues(candidates map[string]string, v *kong.Value, prefix string) (directive string) {
	switch {
	case v.Enum != "":
		for _, value := range v.EnumSlice() {
			if value != "" {
				candidates[prefix+value] = ""
			}
		}
	case v.Name == "pid", v.Name == "process":
		for _, p := range publication.Survey(context.Background(), false).Publications {
			service := p.Service()
			candidates[prefix+strconv.Itoa(p.PID)] = display.Name(service)
			if v.Name == "process" && service != "" && display.Shell(service) == service { // The shell would split other names.
				candidates[prefix+service] = "process " + strconv.Itoa(p.PID)
			}
		}
	case v.Flag != nil && v.Flag.PlaceHolder == "FILE":
		return completeFiles
	}
	return ""
}
