// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/boottime"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// Roles of child processes.
const (
	// rolePublisher is a Go service that publishes a resource when asked.
	rolePublisher = "publisher"
	// roleWriter publishes a process context with arbitrary content, as another library might.
	roleWriter = "writer"
	// roleStalling maps memory that has the name of a process context and blocks every reader.
	roleStalling = "stalling"
)

// tick is the interval at which tests poll for a condition.
const tick = 5 * time.Millisecond

// startPublisher starts a service that publishes a resource with the given service name and instance id. If
// rules are given, the service runs under a seccomp filter made from them.
func startPublisher(t *testing.T, name, instance string, rules ...childproc.Rule) *childproc.Child {
	t.Helper()
	c := startIdle(t)
	asked, err := json.Marshal(order{name, instance, rules})
	require.NoError(t, err)
	require.Equal(t, "published", c.Ask("%s", asked))
	return c
}

// startHidden starts a service that publishes a resource, but that only root may read.
func startHidden(t *testing.T) *childproc.Child {
	t.Helper()
	c := startPublisher(t, "hidden", "1")
	require.Equal(t, "hidden", c.Ask("hide"))
	return c
}

// startIdle starts a service that publishes nothing.
func startIdle(t *testing.T) *childproc.Child {
	t.Helper()
	c := childproc.Start(t, rolePublisher, nil)
	c.Expect("ready")
	return c
}

// order tells a publisher which seccomp rules to apply and which resource to publish.
type order struct {
	Name, Instance string
	Rules          []childproc.Rule
}

func publisherRole(parent *childproc.Parent) {
	parent.AdmitReaders()
	parent.Send("ready")
	asked, ok := parent.Receive()
	if !ok {
		return
	}
	var o order
	parent.Must(json.Unmarshal([]byte(asked), &o))
	if len(o.Rules) > 0 {
		parent.Must(childproc.Deny(o.Rules...))
	}
	parent.Must(advertise.Change([]attribute.KeyValue{
		attribute.String("threadlocal.schema_version", "go_pprof_labels_v1"),
		attribute.String("threadlocal.go.version", "go1.99"),
		attribute.Slice("threadlocal.attribute_key_map", attribute.StringValue("http.route"), attribute.Int64Value(7)),
	}, nil))
	parent.Must(resourcepublisher.SetAttributes(
		attribute.Map("nested", attribute.Bool("yes", true), attribute.ByteSlice("bytes", []byte{1, 2, 3})),
	))
	_, err := resourcepublisher.New(resource.NewWithAttributes("https://opentelemetry.io/schemas/1.43.0",
		attribute.String("service.name", o.Name),
		attribute.String("service.version", "1.2.3"),
		attribute.String("service.instance.id", o.Instance),
		attribute.String("telemetry.sdk.name", "opentelemetry"),
		attribute.String("telemetry.sdk.language", "go"),
		attribute.String("telemetry.sdk.version", "1.47.0"),
		attribute.Int64("limits.memory", 9007199254740993),
		attribute.Float64Slice("load", []float64{0.5, 1.25, 3}),
		attribute.Bool("canary", true),
	))
	parent.Must(err)
	parent.Send("published")
	if asked, _ := parent.Receive(); asked == "hide" {
		parent.Must(childproc.ForbidReaders())
		parent.Send("hidden")
		parent.Receive()
	}
}

// header holds the fields of a process context header that a test may choose. [writerRole] fills in the others.
type header struct {
	version     uint32
	publishedAt uint64
}

// goodHeader returns the header of a valid context published now.
func goodHeader(t *testing.T) header {
	t.Helper()
	now, err := boottime.Now()
	require.NoError(t, err)
	return header{wire.ProcessContextVersion, now}
}

// startWriter starts a process that publishes a process context with this header and payload.
func startWriter(t *testing.T, h header, payload []byte) *childproc.Child {
	t.Helper()
	c := childproc.Start(t, roleWriter, nil)
	require.Equal(t, "written", c.Ask("%d %d %x", h.version, h.publishedAt, payload))
	return c
}

// startForeign starts a process that publishes a process context as another library might. text is the context
// in protobuf text format.
func startForeign(t *testing.T, text string) *childproc.Child {
	t.Helper()
	pc := &processcontextpb.ProcessContext{}
	require.NoError(t, prototext.Unmarshal([]byte(text), pc))
	for _, kv := range pc.GetResource().GetAttributes() {
		if kv.GetKey() == "value.unknown_type" {
			// Simulate a value type that a later version of OTLP may add: field 100, length-delimited.
			kv.GetValue().ProtoReflect().SetUnknown([]byte{0xa2, 0x06, 0x03, 'n', 'e', 'w'})
		}
	}
	payload, err := proto.Marshal(pc)
	require.NoError(t, err)
	return startWriter(t, goodHeader(t), payload)
}

func writerRole(parent *childproc.Parent) {
	parent.AdmitReaders()
	order, _ := parent.Receive()
	var (
		h       header
		payload []byte
	)
	_, err := fmt.Sscanf(order, "%d %d %x", &h.version, &h.publishedAt, &payload)
	parent.Must(err)
	memory, err := vma.New(wire.ProcessContextName, wire.ProcessContextHeaderSize+len(payload))
	parent.Must(err)
	copy(memory.Bytes()[wire.ProcessContextHeaderSize:], payload)
	*wire.ProcessContextHeaderIn(memory.Bytes()) = wire.ProcessContextHeader{
		Signature:     [8]byte([]byte(wire.ProcessContextSignature)),
		Version:       h.version,
		PayloadSize:   uint32(len(payload)),
		PublishedAtNS: h.publishedAt,
		Payload:       memory.Address() + wire.ProcessContextHeaderSize,
	}
	parent.Must(memory.Announce())
	parent.Send("written")
	parent.Receive()
}

// startStalling starts a process that blocks all readers of its process context. When it is sent the id of a
// process, it answers "waits" as soon as that process is blocked.
func startStalling(t *testing.T) *childproc.Child {
	t.Helper()
	c := childproc.Start(t, roleStalling, nil)
	said := c.Receive()
	switch said {
	case "not permitted":
		t.Skip("to handle the page faults of others takes CAP_SYS_PTRACE")
	case "not supported":
		t.Skip("the kernel has no userfaultfd")
	}
	require.Equal(t, "stalling", said)
	return c
}

func stallingRole(parent *childproc.Parent) {
	parent.AdmitReaders()
	_, awaitReader, err := childproc.Stall(wire.ProcessContextName, os.Getpagesize())
	switch {
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		parent.Send("not permitted")
		return
	case errors.Is(err, errors.ErrUnsupported):
		parent.Send("not supported")
		return
	}
	parent.Must(err)
	parent.Send("stalling")
	for pid, ok := parent.Receive(); ok; pid, ok = parent.Receive() {
		for thread := ""; thread == ""; { // Skip readers other than pid.
			tid, err := awaitReader()
			parent.Must(err)
			if _, err := os.Stat(fmt.Sprintf("/proc/%s/task/%d", pid, tid)); err == nil {
				thread = strconv.Itoa(tid)
			}
		}
		parent.Send("waits")
	}
}
