// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
)

func TestConfig(t *testing.T) {
	const general, profiles = "OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_PROFILES_"
	for _, c := range []struct {
		name     string
		endpoint string
		env      map[string]string
		target   string
		secure   bool
	}{
		{name: "default", target: "localhost:4317"},
		{name: "general", env: map[string]string{general + "ENDPOINT": "http://a:1"}, target: "a:1"},
		{name: "profiles", env: map[string]string{general + "ENDPOINT": "http://a:1", profiles + "ENDPOINT": "https://b:2/path"}, target: "b:2", secure: true},
		{name: "empty counts as not set", env: map[string]string{general + "ENDPOINT": "http://a:1", profiles + "ENDPOINT": ""}, target: "a:1"},
		{name: "no port", endpoint: "http://c", target: "c:4317"},
		{name: "no port, TLS, IPv6", endpoint: "https://[::1]/", target: "[::1]:4317", secure: true},
		{name: "command line", endpoint: "HTTP://c:3", env: map[string]string{profiles + "ENDPOINT": "https://b:2"}, target: "c:3"},
		{name: "scheme before INSECURE", endpoint: "https://c:3", env: map[string]string{general + "INSECURE": "true"}, target: "c:3", secure: true},
		{name: "scheme before not INSECURE", endpoint: "http://c:3", env: map[string]string{general + "INSECURE": "false"}, target: "c:3"},
		{name: "no scheme", endpoint: "c:3", target: "c:3", secure: true},
		{name: "no scheme, insecure", endpoint: "c:3", env: map[string]string{general + "INSECURE": "True"}, target: "c:3"},
		{name: "no scheme, insecure but for profiles", endpoint: "c:3", env: map[string]string{general + "INSECURE": "true", profiles + "INSECURE": "false"}, target: "c:3", secure: true},
		{name: "gRPC's scheme", endpoint: "dns:///c:3", target: "dns:///c:3", secure: true},
		{name: "gRPC for profiles", env: map[string]string{general + "PROTOCOL": "http/protobuf", profiles + "PROTOCOL": "grpc"}, target: "localhost:4317"},
		{name: "HTTP", env: map[string]string{general + "PROTOCOL": "http/protobuf"}, target: "http://localhost:4318/v1development/profiles"},
		{name: "HTTP, general", env: map[string]string{general + "PROTOCOL": "http/protobuf", general + "ENDPOINT": "https://a:1"}, target: "https://a:1/v1development/profiles", secure: true},
		{name: "HTTP, general with a path", env: map[string]string{general + "PROTOCOL": "http/protobuf", general + "ENDPOINT": "http://a:1/otlp/"}, target: "http://a:1/otlp/v1development/profiles"},
		{name: "HTTP, profiles", env: map[string]string{general + "PROTOCOL": "http/protobuf", general + "ENDPOINT": "http://a:1", profiles + "ENDPOINT": "http://b:2/take?a=b"}, target: "http://b:2/take?a=b"},
		{name: "HTTP, profiles without a path", env: map[string]string{general + "PROTOCOL": "http/protobuf", profiles + "ENDPOINT": "http://b:2"}, target: "http://b:2"},
		{name: "HTTP, command line", endpoint: "https://c/", env: map[string]string{general + "PROTOCOL": "http/protobuf", profiles + "ENDPOINT": "http://b:2"}, target: "https://c/v1development/profiles", secure: true},
		{name: "HTTP, command line with a path", endpoint: "http://c:3/take", env: map[string]string{general + "PROTOCOL": "http/protobuf"}, target: "http://c:3/take"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := newConfig(c.endpoint, func(name string) string { return c.env[name] })
			require.NoError(t, err)
			assert.Equal(t, c.target, got.target)
			assert.Equal(t, c.secure, got.tls != nil)
			assert.Equal(t, 10*time.Second, got.timeout)
			assert.False(t, got.gzip)
			assert.Empty(t, got.headers)
		})
	}
}

func TestConfigSettings(t *testing.T) {
	env := map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS":              "general=1",
		"OTEL_EXPORTER_OTLP_PROFILES_HEADERS":     " Api-Key = a%2Cb%20c , x=y=z,",
		"OTEL_EXPORTER_OTLP_TIMEOUT":              "1500",
		"OTEL_EXPORTER_OTLP_PROFILES_COMPRESSION": "gzip",
	}
	got, err := newConfig("", func(name string) string { return env[name] })
	require.NoError(t, err)
	assert.Equal(t, metadata.MD{"api-key": {"a,b c"}, "x": {"y=z"}}, got.headers)
	assert.Equal(t, 1500*time.Millisecond, got.timeout)
	assert.True(t, got.gzip)
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]struct {
		variable, value, endpoint, want string
		http                            bool
	}{
		"timeout":        {variable: "TIMEOUT", value: "10s", want: "OTEL_EXPORTER_OTLP_TIMEOUT"},
		"zero timeout":   {variable: "TIMEOUT", value: "0", want: "OTEL_EXPORTER_OTLP_TIMEOUT"},
		"compression":    {variable: "PROFILES_COMPRESSION", value: "zstd", want: "OTEL_EXPORTER_OTLP_PROFILES_COMPRESSION"},
		"headers":        {variable: "HEADERS", value: "secret", want: "OTEL_EXPORTER_OTLP_HEADERS"},
		"header's key":   {variable: "HEADERS", value: "a b=secret", want: "other characters"},
		"header's value": {variable: "HEADERS", value: "key=se%0Acret", want: "other characters"},
		"gRPC's header":  {variable: "HEADERS", value: "grpc-timeout=secret", want: "grpc-"},
		"encoding":       {variable: "HEADERS", value: "key=se%cret", want: "percent-encoded"},
		"protocol":       {variable: "PROTOCOL", value: "http/json", want: "grpc or http/protobuf"},
		"insecure":       {variable: "INSECURE", value: "yes", endpoint: "host:1", want: "OTEL_EXPORTER_OTLP_INSECURE"},
		"certificate":    {variable: "CERTIFICATE", value: "/nowhere", endpoint: "https://host", want: "OTEL_EXPORTER_OTLP_CERTIFICATE"},
		"no PEM":         {variable: "CERTIFICATE", value: "/dev/null", endpoint: "https://host", want: "no certificate"},
		"only a key":     {variable: "CLIENT_KEY", value: "/nowhere", endpoint: "https://host", want: "counterpart"},
		"no host":        {endpoint: "http://", want: "no host"},
		"malformed URL":  {endpoint: "http://[", want: "endpoint"},
		"another scheme": {endpoint: "ftp://user:secret@host", want: `the scheme "ftp" is not http, https`},

		"HTTP, no scheme":      {endpoint: "host:4318", want: "http://", http: true},
		"HTTP, gRPC's scheme":  {endpoint: "dns:///host", want: "http://", http: true},
		"HTTP, no host":        {endpoint: "https://", want: "http://", http: true},
		"HTTP, malformed URL":  {endpoint: "http://user:secret@[", want: "not a URL", http: true},
		"HTTP, another scheme": {endpoint: "ftp://user:secret@host", want: "http://", http: true},
		"HTTP, binary header":  {variable: "HEADERS", value: "key-bin=se%0Acret", want: "other characters", http: true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newConfig(c.endpoint, func(name string) string {
				switch {
				case name == "OTEL_EXPORTER_OTLP_"+c.variable:
					return c.value
				case c.http && name == "OTEL_EXPORTER_OTLP_PROTOCOL":
					return protocolHTTP
				}
				return ""
			})
			require.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "cret", "headers and passwords are secrets")
		})
	}
	c := config{protocol: protocolHTTP, target: "https://user:secret@host/path"}
	assert.Equal(t, "https://user:xxxxx@host/path", c.redactedTarget())
}
