// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestPeriods checks that the Collector receives the profiles of a recording with several kinds of samples, period by period:
// exactly those that otelctx record also writes to the files of the periods.
func TestPeriods(t *testing.T) {
	for _, test := range []struct {
		protocol, what string
		kinds          []string
	}{
		{grpcProtobuf, "--alloc --live", []string{"alloc_objects", "alloc_space", "inuse_objects", "inuse_space"}},
		{httpProtobuf, "--alloc --cpu", []string{"alloc_objects", "alloc_space", "samples"}},
		{grpcProtobuf, "--alloc --live --cpu", []string{"alloc_objects", "alloc_space", "inuse_objects", "inuse_space", "samples"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			needProbes(t)
			c := startCollector(t, test.protocol)
			service := start(t, roleLeaking, startCollector(t, grpcProtobuf))
			dir := t.TempDir()
			record := recorder(t, service, c, append([]string{"--repeat", "--duration", "200ms", "--output", filepath.Join(dir, "a.jsonl")}, strings.Fields(test.what)...)...)
			record.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_PROTOCOL="+test.protocol)
			var output bytes.Buffer
			record.Stdout, record.Stderr = &output, &output
			require.NoError(t, record.Start())
			t.Cleanup(func() { _ = record.Process.Kill() })
			// The samples in use are there once the service has collected garbage twice.
			require.Eventually(t, func() bool {
				kinds := c.kinds()
				for _, kind := range test.kinds {
					if kinds[kind] < 2 {
						return false
					}
				}
				return true
			}, testenv.Patience, 10*time.Millisecond)
			require.NoError(t, record.Process.Signal(os.Interrupt))
			require.NoError(t, record.Wait(), output.String())
			service.Send("enough")
			service.Expect("exported")
			service.Done()

			received := map[pprofile.ProfileID]*profilespb.ProfilesData{} // They may arrive in another order.
			for _, profiles := range c.profiles.AllProfiles() {
				received[firstID(profiles)] = encode(t, profiles)
			}
			files, err := filepath.Glob(filepath.Join(dir, "a-*.jsonl"))
			require.NoError(t, err)
			written := 0
			for _, file := range files {
				content, err := os.ReadFile(file)
				require.NoError(t, err)
				for line := range bytes.Lines(content) {
					profiles, err := (&pprofile.JSONUnmarshaler{DisallowUnknownFields: true}).UnmarshalProfiles(line)
					require.NoError(t, err)
					written++
					want, got := encode(t, profiles), received[firstID(profiles)]
					assert.True(t, proto.Equal(want, got), "%s: written %v\nreceived %v", file, want, got)
				}
			}
			assert.Len(t, received, written)
			kinds := c.kinds()
			assert.Len(t, kinds, len(test.kinds), "%v", kinds)
		})
	}
}

func firstID(profiles pprofile.Profiles) pprofile.ProfileID {
	return profiles.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).ProfileID()
}

// kinds counts the profiles received so far by the type of their samples.
func (c *collector) kinds() map[string]int {
	kinds := map[string]int{}
	for _, pd := range c.profiles.AllProfiles() {
		for _, r := range pd.ResourceProfiles().All() {
			for _, scope := range r.ScopeProfiles().All() {
				for _, p := range scope.Profiles().All() {
					kinds[pd.Dictionary().StringTable().At(int(p.SampleType().TypeStrindex()))]++
				}
			}
		}
	}
	return kinds
}
