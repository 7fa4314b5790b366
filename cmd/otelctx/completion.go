// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCommand is otelctx completion.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish." name:"shell"`
}

// Help is shown by otelctx completion --help.
func (*completionCommand) Help() string {
	return "Add the line of your shell to its start-up file:\n\n" +
		"  bash:  source <(otelctx completion bash)\n" +
		"  zsh:   source <(otelctx completion zsh)      after compinit\n" +
		"  fish:  otelctx completion fish | source\n\n" +
		"Process ids are completed with those that otelctx list shows."
}

// Run is called by kong.
func (c *completionCommand) Run(s streams, model *kong.Application) error {
	script := map[string]func(*kong.Application) string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Shell]
	_, err := fmt.Fprint(s.stdout, script(model))
	return err
}

// Kinds of values that a shell completes.
const (
	valueNone  = ""
	valueFile  = "file"
	valuePID   = "pid"
	valueWords = "words"
)

// valueKind says how to complete a value, and by which words.
func valueKind(v *kong.Value) (kind string, words []string) {
	words = slices.DeleteFunc(v.EnumSlice(), func(s string) bool { return s == "" })
	switch {
	case len(words) > 0:
		return valueWords, words
	case v.Name == "pid":
		return valuePID, nil
	case v.Flag != nil && v.Flag.PlaceHolder == "FILE":
		return valueFile, nil
	default:
		return valueNone, nil
	}
}

// flagNames returns what a flag is called on the command line.
func flagNames(f *kong.Flag) []string {
	names := []string{"--" + f.Name}
	if f.Short != 0 {
		names = append(names, "-"+string(f.Short))
	}
	return names
}

// allFlags returns the flags that a command takes.
func allFlags(c *kong.Node) []*kong.Flag { return slices.Concat(c.Flags, c.Parent.Flags) }

// listedPIDs prints the process ids that otelctx list shows, with the names of their services.
const listedPIDs = `otelctx list 2>/dev/null | awk 'NR > 1 { print $1 "%s" $2 }'`

func bashCompletion(model *kong.Application) string {
	var commands []string
	var values, flags strings.Builder
	for _, c := range model.Leaves(true) {
		commands = append(commands, c.Name)
		var names []string
		for _, f := range allFlags(c) {
			names = append(names, flagNames(f)...)
			if f.IsBool() {
				continue
			}
			var reply string
			switch kind, words := valueKind(f.Value); kind {
			case valueFile:
				reply = `compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur"))`
			case valuePID:
				reply = `COMPREPLY=($(compgen -W "$(_otelctx_pids)" -- "$cur"))`
			case valueWords:
				reply = fmt.Sprintf(`COMPREPLY=($(compgen -W "%s" -- "$cur"))`, strings.Join(words, " "))
			default:
				reply = ":"
			}
			for _, name := range flagNames(f) {
				fmt.Fprintf(&values, "\t%s,%s) %s; return ;;\n", c.Name, name, reply)
			}
		}
		arguments := ""
		for _, p := range c.Positional {
			switch kind, words := valueKind(p); kind {
			case valuePID:
				arguments = `$(_otelctx_pids)`
			case valueWords:
				arguments = strings.Join(words, " ")
			}
		}
		fmt.Fprintf(&flags, "\t%s,-*) words=\"%s\" ;;\n\t%s,*) words=\"%s\" ;;\n", c.Name, strings.Join(names, " "), c.Name, arguments)
	}
	return `# Made by otelctx completion bash.
_otelctx_pids() { ` + fmt.Sprintf(listedPIDs, " ") + ` | cut -d' ' -f1; }

_otelctx() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} words="" i
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		COMPREPLY=($(compgen -W "` + strings.Join(commands, " ") + ` --help --version" -- "$cur"))
		return
	fi
	for ((i = 2; i < COMP_CWORD; i++)); do
		# What comes behind is the command to record.
		if [[ $command == record && ${COMP_WORDS[i]} == -- ]]; then
			compopt -o filenames
			COMPREPLY=($(compgen -c -f -- "$cur"))
			return
		fi
	done
	if [[ $cur == = ]]; then
		cur=
	elif [[ $prev == = ]]; then
		prev=${COMP_WORDS[COMP_CWORD - 2]}
	fi
	case $command,$prev in
` + values.String() + `	esac
	case $command,$cur in
` + flags.String() + `	esac
	COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _otelctx otelctx
`
}

func zshCompletion(model *kong.Application) string {
	var commands, cases strings.Builder
	for _, c := range model.Leaves(true) {
		fmt.Fprintf(&commands, "\t\t%s\n", zshQuote(c.Name+":"+c.Help))
		fmt.Fprintf(&cases, "\t%s)\n\t\t_arguments -s -S", c.Name)
		for _, f := range allFlags(c) {
			for _, name := range flagNames(f) {
				spec := name
				if !f.IsBool() {
					spec += map[bool]string{true: "=", false: "+"}[strings.HasPrefix(name, "--")]
				}
				spec += "[" + zshText(f.Help) + "]"
				if !f.IsBool() {
					spec += ":" + zshText(f.FormatPlaceHolder()) + ":" + zshAction(f.Value)
				}
				if f.IsSlice() {
					spec = "*" + spec
				}
				fmt.Fprintf(&cases, " \\\n\t\t\t%s", zshQuote(spec))
			}
		}
		for _, p := range c.Positional {
			many := ":"
			if p.IsCumulative() {
				many = "*:"
			}
			fmt.Fprintf(&cases, " \\\n\t\t\t%s", zshQuote(many+p.Name+":"+zshAction(p)))
		}
		cases.WriteString("\n\t\t;;\n")
	}
	return `#compdef otelctx
# Made by otelctx completion zsh.
_otelctx_pids() {
	local -a pids
	pids=(${(f)"$(` + fmt.Sprintf(listedPIDs, ":") + `)"})
	_describe process pids
}

_otelctx() {
	local -a commands
	if ((CURRENT == 2)); then
		commands=(
` + commands.String() + `		)
		_describe command commands
		_arguments --help --version
		return
	fi
	# What comes behind -- is the command to record.
	local i=${words[(i)--]}
	if [[ ${words[2]} == record ]] && ((i < CURRENT)); then
		shift $i words
		((CURRENT -= i))
		_normal
		return
	fi
	local command=${words[2]}
	shift words
	((CURRENT--))
	case $command in
` + cases.String() + `	esac
}
compdef _otelctx otelctx
`
}

// zshAction returns how _arguments completes a value.
func zshAction(v *kong.Value) string {
	switch kind, words := valueKind(v); kind {
	case valueFile:
		return "_files"
	case valuePID:
		return "_otelctx_pids"
	case valueWords:
		return "(" + strings.Join(words, " ") + ")"
	default:
		return " "
	}
}

// zshText escapes what means something in the specifications of _arguments.
func zshText(s string) string {
	return strings.NewReplacer(`\`, `\\`, "[", `\[`, "]", `\]`, ":", `\:`).Replace(s)
}

func zshQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func fishCompletion(model *kong.Application) string {
	var b strings.Builder
	b.WriteString(`# Made by otelctx completion fish.
function __otelctx_pids
	` + fmt.Sprintf(listedPIDs, `\t`) + `
end
# What comes behind -- is the command to record.
function __otelctx_command
	set -l words (commandline -opc)
	contains -- -- $words; and test "$words[2]" = record
end
complete -c otelctx -f
complete -c otelctx -n __otelctx_command -a '(__fish_complete_subcommand --commandline (string split -m1 -- " -- " (commandline -pc))[2])'
complete -c otelctx -n __fish_use_subcommand -l version -d 'Print the version and exit.'
`)
	for _, c := range model.Leaves(true) {
		fmt.Fprintf(&b, "complete -c otelctx -n __fish_use_subcommand -a %s -d %s\n", c.Name, fishQuote(c.Help))
		condition := fishQuote("__fish_seen_subcommand_from " + c.Name + "; and not __otelctx_command")
		for _, f := range allFlags(c) {
			fmt.Fprintf(&b, "complete -c otelctx -n %s -l %s", condition, f.Name)
			if f.Short != 0 {
				fmt.Fprintf(&b, " -s %c", f.Short)
			}
			if !f.IsBool() {
				b.WriteString(fishValues(f.Value))
			}
			fmt.Fprintf(&b, " -d %s\n", fishQuote(f.Help))
		}
		for _, p := range c.Positional {
			if kind, words := valueKind(p); kind == valuePID {
				fmt.Fprintf(&b, "complete -c otelctx -n %s -a '(__otelctx_pids)'\n", condition)
			} else if kind == valueWords {
				fmt.Fprintf(&b, "complete -c otelctx -n %s -a %s\n", condition, fishQuote(strings.Join(words, " ")))
			}
		}
	}
	return b.String()
}

// fishValues returns the arguments of complete that complete a value.
func fishValues(v *kong.Value) string {
	switch kind, words := valueKind(v); kind {
	case valueFile:
		return " -r -F"
	case valuePID:
		return " -x -a '(__otelctx_pids)'"
	case valueWords:
		return " -x -a " + fishQuote(strings.Join(words, " "))
	default:
		return " -x"
	}
}

func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
