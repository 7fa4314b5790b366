// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
)

// recorder returns a command that records the service and sends its profile to the Collector c. It skips the
// test if otelctx may not record.
func recorder(t *testing.T, service *childproc.Child, c *collector, args ...string) *exec.Cmd {
	t.Helper()
	program := programs.Build(t, programs.Static, filepath.Join("..", "..", "..", "cmd", "otelctx"), ".")
	const notPermitted = 4
	pid := strconv.Itoa(service.PID())
	if _, stderr, code := programs.Run(t, exec.Command(program, "record", pid, "--duration", "1ms")); code == notPermitted {
		t.Skip(stderr)
	}
	return exec.Command(program, append([]string{"record", pid, "--otlp-endpoint", c.endpoint}, args...)...)
}

// TestProfiles checks that the Collector receives, over each protocol, exactly the profile that otelctx
// record also writes to a file, and that the Collector's code can read the file in both formats.
func TestProfiles(t *testing.T) {
	for _, test := range []struct{ protocol, compression, file, kind string }{
		{grpcProtobuf, "none", "a.otlp", "--freq=997"},
		{grpcProtobuf, "gzip", "a.json", "--freq=997"},
		{httpProtobuf, "none", "a.json", "--freq=997"},
		{httpProtobuf, "gzip", "a.otlp", "--freq=997"},
		{grpcProtobuf, "gzip", "a.otlp", "--alloc"},
	} {
		t.Run(test.protocol+"/"+test.compression+"/"+test.kind, func(t *testing.T) {
			if test.kind == "--alloc" {
				needProbes(t)
			}
			c := startCollector(t, test.protocol)
			service := startService(t, startCollector(t, grpcProtobuf))
			path := filepath.Join(t.TempDir(), test.file)
			record := recorder(t, service, c, "--duration", "500ms", test.kind, "--output", path)
			record.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_PROTOCOL="+test.protocol, "OTEL_EXPORTER_OTLP_COMPRESSION="+test.compression)
			_, stderr, code := programs.Run(t, record)
			require.Zero(t, code, stderr)
			service.Send("enough")
			service.Expect("exported")
			service.Done()

			content, err := os.ReadFile(path)
			require.NoError(t, err)
			var written pprofile.Profiles
			if test.file == "a.json" {
				written, err = (&pprofile.JSONUnmarshaler{DisallowUnknownFields: true}).UnmarshalProfiles(content)
			} else {
				written, err = (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(content)
				requireNothingUnknown(t, content, written)
			}
			require.NoError(t, err)
			received := c.profiles.AllProfiles()
			require.Len(t, received, 1)
			linked, _, _, _ := c.linked()
			assert.NotEmpty(t, linked)
			assert.True(t, proto.Equal(encode(t, written), encode(t, received[0])), "written %v\nreceived %v", written, received[0])
		})
	}
}

// needProbes skips the test if otelctx may not record allocations here.
func needProbes(t *testing.T) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("allocations are recorded on amd64 only")
	}
	if _, err := os.Stat("/sys/bus/event_source/devices/uprobe"); err != nil {
		t.Skip("probes in processes need CONFIG_UPROBE_EVENTS: ", err)
	}
	if !childproc.Capable(t, unix.CAP_SYS_ADMIN) {
		t.Skip("probes in processes need CAP_SYS_ADMIN")
	}
}

// encode converts profiles from the Collector's model to the protobuf message.
func encode(t *testing.T, profiles pprofile.Profiles) *profilespb.ProfilesData {
	t.Helper()
	content, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(profiles)
	require.NoError(t, err)
	data := &profilespb.ProfilesData{}
	require.NoError(t, proto.Unmarshal(content, data))
	return data
}

// requireNothingUnknown fails if content has fields that the Collector's model does not know and has dropped.
func requireNothingUnknown(t *testing.T, content []byte, model pprofile.Profiles) {
	t.Helper()
	want, got := &profilespb.ProfilesData{}, encode(t, model)
	require.NoError(t, proto.Unmarshal(content, want))
	strings := len(want.GetDictionary().GetStringTable())
	require.NotZero(t, strings)
	for _, data := range []*profilespb.ProfilesData{want, got} {
		// The Collector's model encodes zero values differently and adds the resource's strings to the string
		// table.
		for _, r := range data.GetResourceProfiles() {
			r.Resource = nil
		}
		d := data.GetDictionary()
		d.LinkTable, d.AttributeTable, d.StringTable = d.GetLinkTable()[1:], d.GetAttributeTable()[1:], d.GetStringTable()[:strings]
	}
	require.True(t, proto.Equal(want, got), "content %v\nmodel %v", want, got)
}
