// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"strconv"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
)

// targets selects the processes to record in exactly one way: by pids, by names, services and cgroups, all
// that publish, or a command to start.
type targets struct {
	pids                     []int
	all                      bool
	names, services, cgroups []string
	command                  []string
}

// byName reports whether processes are selected by service, name or control group.
func (t *targets) byName() bool { return len(t.names)+len(t.services)+len(t.cgroups) > 0 }

// selection returns the processes to record. It is not used for a command.
func (t *targets) selection() recording.Selection {
	return recording.Selection{PIDs: t.pids, Names: t.names, Services: t.services, Cgroups: t.cgroups}
}

// maxCommandText is the maximum number of characters of a command that are printed.
const maxCommandText = 60

// String describes the processes to record.
func (t *targets) String() string {
	switch {
	case t.command != nil:
		words := make([]string, len(t.command))
		for i, word := range t.command {
			words[i] = display.Shell(word)
		}
		text := []rune(strings.Join(words, " "))
		if len(text) > maxCommandText {
			text = append(text[:maxCommandText], '…')
		}
		return string(text)
	case len(t.pids) == 1:
		return "process " + strconv.Itoa(t.pids[0])
	case len(t.pids) > 1:
		var ids []string
		for _, pid := range t.pids {
			ids = append(ids, strconv.Itoa(pid))
		}
		return "processes " + strings.Join(ids, ", ")
	case !t.byName():
		return "every process that publishes"
	}
	var by []string
	for _, s := range []struct {
		what   string
		values []string
	}{{"name", t.names}, {"service", t.services}, {"control group", t.cgroups}} {
		if len(s.values) > 0 {
			by = append(by, s.what+" "+display.Key(strings.Join(s.values, " or ")))
		}
	}
	return "processes of " + strings.Join(by, " and ")
}
