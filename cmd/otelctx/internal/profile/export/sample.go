// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"encoding/hex"
	"iter"
	"path"
	"slices"
	"strings"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// These labels contain the ids of the span in lower-case hexadecimal. A Go service's own profiles have labels with
// the same keys if the service publishes goroutine records.
const (
	labelTraceID = "trace_id"
	labelSpanID  = "span_id"
)

// resourceLabels lists the resource attributes that become labels of samples, so that services and processes can
// be told apart.
var resourceLabels = []string{
	string(semconv.ServiceNameKey),
	string(semconv.ServiceNamespaceKey),
	string(semconv.ServiceInstanceIDKey),
	string(semconv.HostNameKey),
	string(semconv.ContainerIDKey),
	string(semconv.ProcessPIDKey),
	string(semconv.ProcessExecutableNameKey),
}

// sample is a sample as the encoders of all formats other than OTLP use it.
type sample struct {
	dictionary *profilespb.ProfilesDictionary
	locations  []int32 // the innermost first
	// labels holds the ids of the span, the sample's attributes, and the resource attributes that resourceLabels
	// lists. Text labels precede numbers, and both are sorted by key. If a key occurs twice, the sample's
	// attribute takes precedence over the resource's.
	labels []label
	kind   string // profile.TypeCPU, profile.TypeWall, profile.TypeAllocSpace or profile.TypeInuseSpace
	value  int64  // number of samples of CPU time, nanoseconds of wall-clock time, or bytes
	unit   int64  // nanoseconds or bytes that a value of 1 stands for
	// objects is the number of objects that are allocated or in use.
	objects int64
}

// label is an attribute as text or, if isNumber is set, as a number. Only integers are numbers. Lists, maps and
// bytes become JSON text.
type label struct {
	key, text string
	number    int64
	isNumber  bool
}

// eachSample yields all samples of data, which a [profile.Builder] must have made. The labels are valid until the next
// sample. A sample of allocations has both its bytes and its objects.
func eachSample(data *profilespb.ProfilesData) iter.Seq[sample] {
	return func(yield func(sample) bool) {
		d := data.GetDictionary()
		one := sample{dictionary: d}
		var resourceAttributes []label
		var objects []*profilespb.Sample // the same samples with the numbers of objects
		for resource, p := range profile.Each(data) {
			one.kind, one.unit, one.objects = profile.KindOf(d, p), 1, 0
			switch one.kind {
			case profile.TypeCPU:
				one.unit = p.GetPeriod()
			case profile.TypeAllocObjects, profile.TypeInuseObjects:
				objects = p.GetSamples()
				continue
			}
			resourceAttributes = resourceAttributes[:0]
			for _, a := range resource.GetAttributes() {
				if slices.Contains(resourceLabels, a.GetKey()) {
					resourceAttributes = append(resourceAttributes, newLabel(a.GetKey(), a.GetValue()))
				}
			}
			for i, s := range p.GetSamples() {
				if one.kind == profile.TypeAllocSpace || one.kind == profile.TypeInuseSpace {
					one.objects = objects[i].GetValues()[0]
				}
				one.locations = d.GetStackTable()[s.GetStackIndex()].GetLocationIndices()
				one.value = int64(len(s.GetTimestampsUnixNano()))
				if len(s.GetValues()) > 0 {
					one.value = s.GetValues()[0]
				}
				one.labels = append(one.labels[:0], resourceAttributes...)
				for _, i := range s.GetAttributeIndices() {
					a := d.GetAttributeTable()[i]
					one.labels = append(one.labels, newLabel(d.GetStringTable()[a.GetKeyStrindex()], a.GetValue()))
				}
				if i := s.GetLinkIndex(); i != 0 {
					link := d.GetLinkTable()[i]
					one.labels = append(one.labels,
						label{key: labelTraceID, text: hex.EncodeToString(link.GetTraceId())},
						label{key: labelSpanID, text: hex.EncodeToString(link.GetSpanId())})
				}
				one.labels = uniqueLabels(one.labels)
				if !yield(one) {
					return
				}
			}
		}
	}
}

func newLabel(key string, value *commonpb.AnyValue) label {
	if n, ok := value.GetValue().(*commonpb.AnyValue_IntValue); ok {
		return label{key: key, number: n.IntValue, isNumber: true}
	}
	text, ok := profile.Text(value)
	if !ok && value.GetValue() != nil {
		text = protojson.MarshalOptions{}.Format(value)
	}
	return label{key: key, text: text}
}

// uniqueLabels sorts labels and keeps only the last label of each key. It then drops labels with empty text.
func uniqueLabels(labels []label) []label {
	slices.Reverse(labels)
	slices.SortStableFunc(labels, func(a, b label) int { return cmp.Compare(a.key, b.key) })
	labels = slices.CompactFunc(labels, func(a, b label) bool { return a.key == b.key })
	labels = slices.DeleteFunc(labels, func(l label) bool { return l.text == "" && !l.isNumber })
	slices.SortStableFunc(labels, func(a, b label) int {
		switch {
		case a.isNumber == b.isNumber:
			return 0
		case a.isNumber:
			return 1
		default:
			return -1
		}
	})
	return labels
}

// label returns the text of the label with the given key, or "" if there is none or it is a number.
func (s *sample) label(key string) string {
	for _, l := range s.labels {
		if l.key == key {
			return l.text
		}
	}
	return ""
}

// frames yields the names of a sample's frames, the outermost first. The first name is that of the service or, if
// it is unknown, of the executable, or else [unknown]. The names of the functions follow.
func (s *sample) frames() iter.Seq[string] {
	return func(yield func(string) bool) {
		process := cmp.Or(s.label(string(semconv.ServiceNameKey)), s.label(string(semconv.ProcessExecutableNameKey)), "[unknown]")
		if !yield(process) {
			return
		}
		for _, i := range slices.Backward(s.locations) {
			l := s.dictionary.GetLocationTable()[i]
			if len(l.GetLines()) == 0 && !yield(s.unnamed(l)) {
				return
			}
			for _, line := range slices.Backward(l.GetLines()) {
				f := s.dictionary.GetFunctionTable()[line.GetFunctionIndex()]
				if !yield(s.dictionary.GetStringTable()[f.GetNameStrindex()]) {
					return
				}
			}
		}
	}
}

// unnamed returns a placeholder for the name of an unknown function: its file's base name in brackets, or [unknown].
func (s *sample) unnamed(l *profilespb.Location) string {
	m := s.dictionary.GetMappingTable()[l.GetMappingIndex()]
	file := s.dictionary.GetStringTable()[m.GetFilenameStrindex()]
	if file == "" {
		return "[unknown]"
	}
	return "[" + strings.Trim(path.Base(file), "[]") + "]"
}
