// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"io"
	"net/url"
	"os"
	"strings"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/internal/procfs"
)

const (
	// maxEnvironment bounds the bytes that are read of a process's environment.
	maxEnvironment = 256 << 10
	// maxEnvironmentAttributes bounds the attributes in OTEL_RESOURCE_ATTRIBUTES.
	maxEnvironmentAttributes = 128
)

// environmentAttributes returns the resource attributes in the environment that a process was started with, as
// OpenTelemetry SDKs read them. Malformed ones are left out.
func environmentAttributes(pid int) []*commonpb.KeyValue {
	f, err := os.Open(procfs.Host().Path(pid, "environ"))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	variables, err := io.ReadAll(io.LimitReader(f, maxEnvironment))
	if err != nil {
		return nil
	}
	return parseEnvironment(variables)
}

// parseEnvironment parses the content of /proc/PID/environ.
func parseEnvironment(variables []byte) []*commonpb.KeyValue {
	var service, list string
	for variable := range bytes.SplitSeq(variables, []byte{0}) {
		switch name, value, _ := strings.Cut(string(variable), "="); name {
		case "OTEL_SERVICE_NAME":
			service = strings.TrimSpace(value)
		case "OTEL_RESOURCE_ATTRIBUTES":
			list = value
		}
	}
	var kvs []*commonpb.KeyValue
	for pair := range strings.SplitSeq(list, ",") {
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		named := key == string(semconv.ServiceNameKey) && service != "" // OTEL_SERVICE_NAME takes precedence.
		if !ok || key == "" || err != nil || named || len(kvs) == maxEnvironmentAttributes {
			continue
		}
		kvs = append(kvs, profile.StringAttribute(key, value))
	}
	if service != "" {
		kvs = append(kvs, profile.StringAttribute(string(semconv.ServiceNameKey), service))
	}
	return kvs
}
