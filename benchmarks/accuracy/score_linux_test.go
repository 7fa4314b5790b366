// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// What takes long in full is short in go test ./...
var (
	samples = flag.Int("samples", testenv.Rounds(20, 50), "samples per scenario and carrier")
	full    = flag.Bool("full", false, "measure otelctx record in all scenarios")
)

const roleWorkload = "workload"

func TestMain(m *testing.M) {
	childproc.Main(m, roles)
}

// roles are those of children; some platforms have more.
var roles = map[string]func(*childproc.Parent){roleWorkload: run}

// addRole adds one before main starts.
func addRole(name string, f func(*childproc.Parent)) bool {
	roles[name] = f
	return true
}

// startWorkload starts a child and returns it with its answer. The arguments are those of
// run.
func startWorkload(t testing.TB, scenario, publication int, path string) (*childproc.Child, string) {
	t.Helper()
	child := childproc.Start(t, roleWorkload, nil)
	answer := child.Ask("%d %d %s", scenario, publication, path)
	if strings.HasPrefix(answer, "unsupported") {
		t.Skip(answer)
	}
	return child, answer
}

// score counts samples of a carrier.
type score struct {
	given, right          int // samples that were given a span, and the right one
	inside                int // samples in a span
	outside, outsideGiven int // samples outside of all, and those that were given one
}

// add adds a sample: whether it was in a span, whether it was given one, and whether that
// is the one that it was in.
func (s *score) add(inside, given, right bool) {
	if given {
		s.given++
	}
	if given && right {
		s.right++
	}
	if inside {
		s.inside++
	} else {
		s.outside++
		if given {
			s.outsideGiven++
		}
	}
}

func (s *score) samples() int { return s.inside + s.outside }

func (s *score) precision() float64 { return percent(s.right, s.given) }

func (s *score) recall() float64 { return percent(s.right, s.inside) }

func percent(part, whole int) float64 {
	if whole == 0 {
		return 100
	}
	return 100 * float64(part) / float64(whole)
}

// table is the text of a table.
type table struct{ strings.Builder }

func (t *table) header() {
	t.WriteString("\n| Scenario | carrier | samples | precision | recall in spans | outside, yet given a span |\n")
	t.WriteString("|---|---|--:|--:|--:|--:|\n")
}

func (t *table) add(scenario, carrier string, s score) {
	_, _ = fmt.Fprintf(t, "| %s | %s | %d | %.2f %% | %.2f %% | %d of %d |\n", scenario, carrier,
		s.samples(), s.precision(), s.recall(), s.outsideGiven, s.outside)
}
