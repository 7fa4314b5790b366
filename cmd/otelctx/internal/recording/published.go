// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/reader"
)

// published holds the publication of a process and the attributes that the kernel reports about the process.
// Only names and dropped change once a target has it.
type published struct {
	// layout is nil if the process publishes nothing or its publication cannot be read.
	layout *reader.ThreadLayout
	// names is the layout with the newest attribute names, or nil if layout has them.
	names atomic.Pointer[reader.ThreadLayout]
	// spanNames holds the names of the process's spans.
	spanNames *nameTable
	resource  profile.Resource
	// attributes holds the attributes of resource, for the filters.
	attributes []*commonpb.KeyValue
	// dropped counts attributes that profiles cannot represent. It is set to 0 once the tally has counted
	// them.
	dropped int
	// service is the service name, or else the name of the executable.
	service string
	// serviceSource is FromPublication, FromEnvironment or FromExecutable.
	serviceSource string
}

// Sources of a service's name.
const (
	// FromPublication is the process context.
	FromPublication = "published"
	// FromEnvironment is OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES, for a process without a process context.
	FromEnvironment = "environment"
	// FromExecutable is the name of the executable.
	FromExecutable = "executable"
)

// newPublished combines what a process publishes with what the kernel reports about it. layout may be nil.
func newPublished(pid int, layout *reader.ThreadLayout) *published {
	p := &published{layout: layout}
	var (
		attributes []*commonpb.KeyValue
		schemaURL  string
	)
	source := FromPublication
	if layout != nil && layout.Context != nil {
		attributes = layout.Context.Resource.GetAttributes()
		schemaURL = layout.Context.SchemaURL()
	} else if attributes = environmentAttributes(pid); len(attributes) > 0 {
		source = FromEnvironment
		attributes = append(attributes, profile.StringAttribute(resourceSourceKey, source))
	}
	// Published attributes take precedence, so that profiles have the same resource as the exported spans.
	for _, kv := range processAttributes(pid) {
		if !slices.ContainsFunc(attributes, func(a *commonpb.KeyValue) bool { return a.GetKey() == kv.GetKey() }) {
			attributes = append(slices.Clip(attributes), kv)
		}
	}
	named := false
	for _, kv := range attributes {
		named = named || kv.GetKey() == string(semconv.ServiceNameKey)
		switch text := kv.GetValue().GetStringValue(); {
		case kv.GetKey() == string(semconv.ServiceNameKey) && text != "":
			p.service, p.serviceSource = text, source
		case kv.GetKey() == string(semconv.ProcessExecutableNameKey) && p.service == "":
			p.service, p.serviceSource = text, FromExecutable
		}
	}
	if !named && p.service != "" { // as the semantic conventions require and SDKs do
		attributes = append(slices.Clip(attributes), profile.StringAttribute(string(semconv.ServiceNameKey), "unknown_service:"+p.service))
	}
	p.attributes = attributes
	p.resource, p.dropped = profile.NewResource(attributes, schemaURL)
	return p
}

// processAttributes returns the resource attributes that the kernel reports about a process.
func processAttributes(pid int) []*commonpb.KeyValue {
	kvs := []*commonpb.KeyValue{profile.IntAttribute(string(semconv.ProcessPIDKey), int64(pid))}
	// Kernel threads have no executable.
	if exe, err := os.Readlink(procfs.Host().Path(pid, "exe")); err == nil {
		exe = strings.TrimSuffix(exe, " (deleted)")
		kvs = append(kvs,
			profile.StringAttribute(string(semconv.ProcessExecutablePathKey), exe),
			profile.StringAttribute(string(semconv.ProcessExecutableNameKey), filepath.Base(exe)))
	}
	if groups, err := os.ReadFile(procfs.Host().Path(pid, "cgroup")); err == nil {
		kvs = append(kvs, containerAttributes(string(groups))...)
	}
	return kvs
}

// containerID and podUID match ids in cgroup paths. Docker, containerd, CRI-O, Podman and Amazon ECS create
// groups with container ids, and the kubelet creates groups with pod ids. systemd replaces the dashes in pod
// ids with underscores.
var (
	containerID = regexp.MustCompile(`(?:^|[-:])([0-9a-f]{64}|[0-9a-f]{32}-[0-9]{8,10})(?:\.scope)?$`)
	podUID      = regexp.MustCompile(`pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:$|:)`)
)

// containerAttributes returns the innermost container id and pod id in groups, the contents of
// /proc/PID/cgroup.
func containerAttributes(groups string) []*commonpb.KeyValue {
	var container, pod string
	for line := range strings.Lines(groups) {
		line = strings.TrimSuffix(line, "\n")
		for part := range strings.SplitSeq(line, "/") {
			if found := containerID.FindStringSubmatch(part); found != nil {
				container = found[1]
			}
			if found := podUID.FindStringSubmatch(part); found != nil {
				pod = strings.ReplaceAll(found[1], "_", "-")
			}
		}
	}
	var kvs []*commonpb.KeyValue
	if container != "" {
		kvs = append(kvs, profile.StringAttribute(string(semconv.ContainerIDKey), container))
	}
	if pod != "" {
		kvs = append(kvs, profile.StringAttribute(string(semconv.K8SPodUIDKey), pod))
	}
	return kvs
}

// Keys of sample attributes. docs/profile-attributes.md describes them.
const (
	// unprovenKey marks samples whose thread may have been in another span.
	unprovenKey = "otelctx.span.unproven"
	// sampledKey marks, with the value false, samples whose span is not sampled and therefore not exported.
	sampledKey = "otelctx.span.sampled"
	// truncatedKey marks samples whose stack lacks the outermost frames.
	truncatedKey = "otelctx.stack.truncated"
	// resourceSourceKey marks a resource that is not published, but from the process's environment.
	resourceSourceKey = "otelctx.resource.source"
	goroutineKey      = "otelctx.goroutine.id"
)

// Keys of the ids of a sample's trace, span and local root, whose values are in lower-case hexadecimal.
const (
	traceIDKey   = "trace_id"
	spanIDKey    = "span_id"
	localRootKey = "otelctx.local_root_span_id"
)

// sampleAttributes returns the attributes of a sample: those of its span, those of the sample itself and, if
// ids is true, the ids of the span.
func sampleAttributes(s *rawKey, spanAttributes []reader.Attribute, ids bool) []*commonpb.KeyValue {
	var kvs []*commonpb.KeyValue
	// Span attributes come first because the last of equal keys wins: a process must not override observed
	// values.
	for _, a := range spanAttributes {
		kvs = append(kvs, profile.StringAttribute(a.Key, a.Value))
	}
	kvs = append(kvs,
		profile.IntAttribute(string(semconv.CPULogicalNumberKey), int64(s.cpu)),
		profile.IntAttribute(string(semconv.ThreadIDKey), int64(s.tid)),
		profile.StringAttribute(string(semconv.ThreadNameKey), s.comm),
	)
	if s.goroutine != 0 {
		kvs = append(kvs, profile.IntAttribute(goroutineKey, int64(s.goroutine)))
	}
	if s.truncated {
		kvs = append(kvs, profile.BoolAttribute(truncatedKey, true))
	}
	if !s.span.Exists() {
		return kvs
	}
	if ids {
		kvs = append(kvs,
			profile.StringAttribute(traceIDKey, fmt.Sprintf("%x", s.span.TraceID)),
			profile.StringAttribute(spanIDKey, fmt.Sprintf("%x", s.span.SpanID)))
		if s.span.LocalRootSpanID != [8]byte{} {
			kvs = append(kvs, profile.StringAttribute(localRootKey, fmt.Sprintf("%x", s.span.LocalRootSpanID)))
		}
	}
	if !s.span.Proven {
		kvs = append(kvs, profile.BoolAttribute(unprovenKey, true))
	}
	if s.span.Unsampled() {
		kvs = append(kvs, profile.BoolAttribute(sampledKey, false))
	}
	return kvs
}
