// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/reader"
)

// appKey is the attribute by which the example tells its applications apart.
const appKey = "http.app"

// Applications of the example, and the service that both ask, which has no such attribute.
const shop, blog, auth = "shop", "blog", "auth"

// appFunctions are the functions in which they burn. Functions in those have longer names.
var appFunctions = map[string]string{
	"main.(*application).shop": shop, "main.(*application).blog": blog, "main.auth": auth,
}

// TestTwoApps prints how often samples of the example have the attribute of the application
// that burned the processor, and fails if one has another one's.
func TestTwoApps(t *testing.T) {
	r := buildRecorder(t)
	pid := startTwoApps(t)
	formats := map[string]func(*testing.T, *recording, func(observation, int)){
		"profile.otlp": func(t *testing.T, one *recording, f func(observation, int)) {
			t.Helper()
			one.wait(t).observations(pid, f)
		},
		"profile.pb.gz": pprofObservations,
	}
	scores := map[string]appScores{}
	for name := range formats {
		scores[name] = appScores{shop: new(score), blog: new(score), auth: new(score)}
	}
	// Fewer could not tell 99 % from 98 %.
	least := max(*samples, 300)
	for deadline := time.Now().Add(10 * time.Minute); slices.ContainsFunc(slices.Collect(maps.Values(scores)), func(apps appScores) bool {
		return min(apps[shop].inside, apps[blog].inside, apps[auth].outside) < least
	}); {
		require.True(t, time.Now().Before(deadline), "too few samples")
		recordings := map[string]*recording{}
		for name := range formats {
			recordings[name] = r.startTo(t, name, strconv.Itoa(pid), fmt.Sprintf("--freq=%d", frequency), "--duration=1s")
		}
		for name, observations := range formats {
			observations(t, recordings[name], scores[name].add)
		}
	}
	for name, apps := range scores {
		for app, s := range apps {
			t.Logf("%s, %s: %d samples, %d given %s, precision %.2f %%, recall %.2f %%", name, app, s.samples(), s.given, appKey, s.precision(), s.recall())
			assert.Equal(t, s.given, s.right, "%s, %s", name, app)
			assert.GreaterOrEqual(t, s.recall(), 99.0, "%s, %s", name, app)
		}
	}
}

// appScores are the scores by application.
type appScores map[string]*score

// add adds what was seen so many times, if the stack tells which application it was.
func (a appScores) add(o observation, times int) {
	app := appOf(o.names)
	if app == "" {
		return
	}
	for range times {
		a[app].add(app != auth, o.app != "", o.app == app)
	}
}

// startTwoApps starts the example and returns its process id when it shows spans. At the
// end of the test it is interrupted, and must end well.
func startTwoApps(t *testing.T) int {
	t.Helper()
	cmd := exec.Command(programs.Build(t, programs.Static, "../../example", "./twoapps"), "-requests=0")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		timeout := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer timeout.Stop()
		assert.NoError(t, cmd.Wait(), out.String())
	})
	p, err := reader.Open(cmd.Process.Pid)
	require.NoError(t, err)
	defer func() { _ = p.Close() }()
	require.Eventually(t, func() bool {
		carriers, err := p.Carriers(context.WithoutCancel(t.Context()))
		return err == nil && len(carriers) > 0
	}, time.Minute, 10*time.Millisecond)
	return cmd.Process.Pid
}

// appOf returns which of appFunctions is on a stack, "" if none is.
func appOf(names []string) string {
	for _, name := range names {
		for function, app := range appFunctions {
			if name == function || strings.HasPrefix(name, function+".") {
				return app
			}
		}
	}
	return ""
}

// pprofObservations is [result.observations] of a recording in pprof's format.
func pprofObservations(t *testing.T, one *recording, f func(observation, int)) {
	t.Helper()
	one.end(t)
	file, err := os.Open(one.file)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	p, err := profile.Parse(file)
	require.NoError(t, err)
	for _, s := range p.Sample {
		o := observation{app: strings.Join(s.Label[appKey], " and ")}
		for _, l := range s.Location {
			for _, line := range l.Line {
				o.names = append(o.names, line.Function.Name)
			}
		}
		f(o, int(s.Value[0]))
	}
}
