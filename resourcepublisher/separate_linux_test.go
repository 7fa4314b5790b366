// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/foreigncontext"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// publishForeign publishes a process context as another library does, and returns how that
// withdraws it.
func publishForeign(t *testing.T) (withdraw func()) {
	t.Helper()
	unpublish, err := foreigncontext.Publish()
	require.NoError(t, err)
	return func() { require.NoError(t, unpublish()) }
}

// separateMappings returns the lines of this process's maps that have the name of the
// mapping that is no process context.
func separateMappings(t *testing.T) (lines []string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "OTELCTX_THREADLOCAL") {
			lines = append(lines, line)
		}
	}
	return lines
}

func open(t *testing.T) *reader.Process {
	t.Helper()
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

var (
	ofSpans = attribute.String("threadlocal.schema_version", "of a test")
	ofUser  = attribute.String("of.user", "value")
)

// setForTest sets an attribute until the end of the test.
func setForTest(t *testing.T, kv attribute.KeyValue) {
	t.Helper()
	if kv == ofUser {
		require.NoError(t, resourcepublisher.SetAttributes(kv))
		t.Cleanup(func() { require.NoError(t, resourcepublisher.RemoveAttributes(kv.Key)) })
		return
	}
	require.NoError(t, advertise.Change([]attribute.KeyValue{kv}, nil))
	t.Cleanup(func() {
		require.NoError(t, advertise.Change(nil, []attribute.Key{kv.Key}))
		if kv == ofSpans { // the first one
			assert.Empty(t, separateMappings(t))
		}
	})
}

// assertSeparate asserts that spans are advertised apart from the process context.
func assertSeparate(t *testing.T, layout *reader.ThreadLayout, want ...attribute.KeyValue) {
	t.Helper()
	assert.Len(t, separateMappings(t), 1)
	ad := layout.Advertisement
	require.NotNil(t, ad)
	assert.Contains(t, ad.MappingName, "OTELCTX_THREADLOCAL")
	assert.Equal(t, plainAttributes(want), plainMap(ad.Message.GetAttributes()))
	assert.Empty(t, ad.Message.GetResource().GetAttributes())
}

func TestSpansAreAdvertisedWithoutAContextOfOurs(t *testing.T) {
	p := open(t)
	var layout *reader.ThreadLayout
	// look returns what is known now, which is the same as long as nothing changes.
	look := func() *reader.ThreadLayout {
		t.Helper()
		was := layout
		var err error
		layout, err = p.ThreadLayoutSince(t.Context(), was)
		require.NoError(t, err)
		assert.NotSame(t, was, layout)
		again, err := p.ThreadLayoutSince(t.Context(), layout)
		require.NoError(t, err)
		assert.Equal(t, layout.Context != nil || layout.Advertisement != nil, layout == again)
		return layout
	}
	require.Nil(t, look().Advertisement)
	setForTest(t, ofSpans)
	setForTest(t, ofUser)
	assertSeparate(t, look(), ofSpans)
	require.ErrorIs(t, layout.ContextErr, reader.ErrNoContext)

	withdraw := publishForeign(t)
	assertSeparate(t, look(), ofSpans)
	require.NotNil(t, layout.Context)
	_, err := resourcepublisher.NewPublisher(nil)
	require.ErrorIs(t, err, resourcepublisher.ErrForeignContext)
	more := attribute.StringSlice("threadlocal.attribute_key_map", []string{"key"})
	setForTest(t, more)
	assertSeparate(t, look(), ofSpans, more)
	withdraw()
	assertSeparate(t, look(), ofSpans, more)
	require.Nil(t, layout.Context)

	ours, err := resourcepublisher.NewPublisher(resource.NewSchemaless(attribute.Int("n", 1)))
	require.NoError(t, err)
	assert.Empty(t, separateMappings(t))
	require.Same(t, look().Context, layout.Advertisement)
	assert.Equal(t, plainAttributes([]attribute.KeyValue{ofSpans, ofUser, more}), plainMap(layout.Context.Message.GetAttributes()))

	// Readers believe neither of two contexts, but that one of them has spans.
	withdraw = publishForeign(t)
	_, err = p.ProcessContext(t.Context())
	require.NoError(t, err, "a reader that knows a context does not look for another one")
	p = open(t)
	_, err = p.ProcessContext(t.Context())
	require.ErrorIs(t, err, reader.ErrInvalid)
	layout = nil
	require.Nil(t, look().Context)
	require.ErrorIs(t, layout.ContextErr, reader.ErrInvalid)
	require.NotContains(t, layout.Advertisement.MappingName, "OTELCTX_THREADLOCAL")
	assert.Len(t, layout.Advertisement.Message.GetAttributes(), 3)

	require.NoError(t, ours.Shutdown(context.Background()))
	assertSeparate(t, look(), ofSpans, more)
	require.NotNil(t, layout.Context)
	withdraw()
	assertSeparate(t, look(), ofSpans, more)
}

func TestSeveralContextsWithoutSpansAreInvalid(t *testing.T) {
	defer publishForeign(t)()
	defer publishForeign(t)()
	_, err := open(t).ThreadLayout(t.Context())
	require.ErrorIs(t, err, reader.ErrInvalid)
	setForTest(t, ofSpans)
	layout, err := open(t).ThreadLayout(t.Context())
	require.NoError(t, err)
	assertSeparate(t, layout, ofSpans)
}

// One invalid key of an attribute must not hide the spans, nor move the keys behind it.
func TestInvalidTextOfSpans(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	setForTest(t, ofSpans)
	setForTest(t, attribute.StringSlice("threadlocal.attribute_key_map", []string{"\xff", "key"}))
	layout, err := open(t).ThreadLayout(t.Context())
	require.NoError(t, err)
	assertSeparate(t, layout, ofSpans, attribute.StringSlice("threadlocal.attribute_key_map", []string{"\uFFFD", "key"}))
	errs := handled.Take()
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], `"threadlocal.attribute_key_map" is changed`)
}

// Keys that are reserved can neither be set nor taken back.
func TestReservedAttributes(t *testing.T) {
	setForTest(t, ofSpans)
	require.ErrorContains(t, resourcepublisher.SetAttributes(attribute.String("threadlocal.schema_version", "other")), "reserved")
	require.NoError(t, resourcepublisher.RemoveAttributes("threadlocal.schema_version"))
	layout, err := open(t).ThreadLayout(t.Context())
	require.NoError(t, err)
	assertSeparate(t, layout, ofSpans)
}

// Readers know the spans of one Go runtime in a process: of the one that was first.
func TestSpansOfAnotherGoRuntime(t *testing.T) {
	goVersion := &commonpb.KeyValue{Key: "threadlocal.go.version", Value: &commonpb.AnyValue{}}
	for name, mapping := range map[string]string{"in its process context": "OTEL_CTX", "beside one": "OTELCTX_THREADLOCAL"} {
		t.Run(name, func(t *testing.T) {
			withdraw, err := foreigncontext.PublishAs(mapping, goVersion)
			require.NoError(t, err)
			change := func() error { return advertise.Change([]attribute.KeyValue{ofSpans}, nil) }
			require.ErrorContains(t, change(), "another Go runtime in this process publishes its spans")
			layout, err := open(t).ThreadLayout(t.Context())
			require.NoError(t, err)
			assert.Contains(t, layout.Advertisement.MappingName, mapping)
			require.NoError(t, withdraw())
			require.NoError(t, change())
			require.NoError(t, advertise.Change(nil, []attribute.Key{ofSpans.Key}))
		})
	}
}

func TestOnlySpansAreAdvertisedWithoutAContext(t *testing.T) {
	setForTest(t, ofUser)
	assert.Empty(t, separateMappings(t))
}

func TestTooManyAttributesOfSpansChangeNothing(t *testing.T) {
	setForTest(t, ofSpans)
	err := advertise.Change([]attribute.KeyValue{attribute.String("threadlocal.large", strings.Repeat("x", resourcepublisher.MaxPayloadSize))}, nil)
	require.ErrorIs(t, err, resourcepublisher.ErrTooLarge)
	layout, err := open(t).ThreadLayout(t.Context())
	require.NoError(t, err)
	assertSeparate(t, layout, ofSpans)
}

func TestDisablingTheContextLeavesSpans(t *testing.T) {
	t.Setenv("OTELCTX_PROCESS_CONTEXT_DISABLED", "true")
	handled := oteltest.HandledErrors(t)
	resourcepublisher.WithResource(resource.Empty())
	setForTest(t, ofSpans)
	assert.Empty(t, contextMappings(t, os.Getpid()))
	assert.Len(t, separateMappings(t), 1)
	assert.Empty(t, handled.Take())
}

// advertiseUnderFilter sets attributes of spans where no mapping can be found by a name.
func advertiseUnderFilter(parent *childproc.Parent) {
	var handled error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { handled = errors.Join(handled, err) }))
	parent.Must(childproc.Deny(childproc.NoMemfd, childproc.NoNaming))
	err := advertise.Change([]attribute.KeyValue{ofSpans}, nil)
	parent.Send("%v, reported: %s", err, strings.ReplaceAll(handled.Error(), "\n", "; "))
	parent.Receive()
}

func TestSpansThatCannotBeAdvertisedAreReported(t *testing.T) {
	child := childproc.Start(t, "advertise under a filter", nil)
	assert.Regexp(t, "^<nil>, reported: spans cannot be advertised: .*memfd_create: operation not permitted", child.Receive())
	child.Done()
}
