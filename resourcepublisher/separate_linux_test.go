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
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/foreigncontext"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// publishForeign publishes a process context as another library would, and returns a function that
// withdraws it.
func publishForeign(t *testing.T) (withdraw func()) {
	t.Helper()
	unpublish, err := foreigncontext.Publish()
	require.NoError(t, err)
	return func() { require.NoError(t, unpublish()) }
}

// separateMappings returns the lines of this process's maps that contain the name of the
// separate mapping.
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
	spanAttribute = attribute.String("threadlocal.schema_version", "test")
	userAttribute = attribute.String("user.key", "value")
)

// change advertises spans, as package spanctx does.
func change(set []attribute.KeyValue, remove []attribute.Key) error {
	defer providers.Lock()()
	return advertise.Change(set, remove)
}

// setForTest sets an attribute until the end of the test.
func setForTest(t *testing.T, kv attribute.KeyValue) {
	t.Helper()
	if kv == userAttribute {
		require.NoError(t, resourcepublisher.SetAttributes(kv))
		t.Cleanup(func() { require.NoError(t, resourcepublisher.RemoveAttributes(kv.Key)) })
		return
	}
	require.NoError(t, change([]attribute.KeyValue{kv}, nil))
	t.Cleanup(func() {
		require.NoError(t, change(nil, []attribute.Key{kv.Key}))
		if kv == spanAttribute { // cleanups run in reverse order, so the first attribute is removed last
			assert.Empty(t, separateMappings(t))
		}
	})
}

// assertSeparate asserts that spans are advertised in the separate mapping, with exactly these
// attributes.
func assertSeparate(t *testing.T, layout *reader.ThreadLayout, want ...attribute.KeyValue) {
	t.Helper()
	assert.Len(t, separateMappings(t), 1)
	ad := layout.Advertisement
	require.NotNil(t, ad)
	assert.Contains(t, ad.MappingName, "OTELCTX_THREADLOCAL")
	assert.Equal(t, plainAttributes(want), plainMap(ad.Attributes))
	assert.Empty(t, ad.Resource.GetAttributes())
}

func TestSpansAreAdvertisedSeparately(t *testing.T) {
	p := open(t)
	var layout *reader.ThreadLayout
	// refresh reads the layout again, and checks that a further read without a change returns the
	// same layout.
	refresh := func() *reader.ThreadLayout {
		t.Helper()
		previous := layout
		var err error
		layout, err = p.ThreadLayoutSince(t.Context(), previous)
		require.NoError(t, err)
		assert.NotSame(t, previous, layout)
		again, err := p.ThreadLayoutSince(t.Context(), layout)
		require.NoError(t, err)
		assert.Equal(t, layout.Context != nil || layout.Advertisement != nil, layout == again)
		return layout
	}
	require.Nil(t, refresh().Advertisement)
	setForTest(t, userAttribute)
	assert.Empty(t, separateMappings(t), "only spans are advertised without a context")
	setForTest(t, spanAttribute)
	assertSeparate(t, refresh(), spanAttribute)
	require.ErrorIs(t, layout.ContextErr, reader.ErrNoContext)

	withdraw := publishForeign(t)
	assertSeparate(t, refresh(), spanAttribute)
	require.NotNil(t, layout.Context)
	_, err := resourcepublisher.New(nil)
	require.ErrorIs(t, err, resourcepublisher.ErrForeignContext)
	more := attribute.StringSlice("threadlocal.attribute_key_map", []string{"key"})
	setForTest(t, more)
	assertSeparate(t, refresh(), spanAttribute, more)
	withdraw()
	assertSeparate(t, refresh(), spanAttribute, more)
	require.Nil(t, layout.Context)

	pub, err := resourcepublisher.New(resource.NewSchemaless(attribute.Int("n", 1)))
	require.NoError(t, err)
	assert.Empty(t, separateMappings(t))
	require.Same(t, refresh().Context, layout.Advertisement)
	assert.Equal(t, plainAttributes([]attribute.KeyValue{spanAttribute, userAttribute, more}), plainMap(layout.Context.Attributes))

	// Readers trust the resource of neither context, but use the spans that one of them advertises.
	withdraw = publishForeign(t)
	_, err = p.ProcessContext(t.Context())
	require.NoError(t, err, "a reader that has found a context does not search for another one")
	p = open(t)
	_, err = p.ProcessContext(t.Context())
	require.ErrorIs(t, err, reader.ErrInvalid)
	layout = nil
	require.Nil(t, refresh().Context)
	require.ErrorIs(t, layout.ContextErr, reader.ErrInvalid)
	require.NotContains(t, layout.Advertisement.MappingName, "OTELCTX_THREADLOCAL")
	assert.Len(t, layout.Advertisement.Attributes, 3)

	require.NoError(t, pub.Shutdown(context.Background()))
	assertSeparate(t, refresh(), spanAttribute, more)
	require.NotNil(t, layout.Context)
	withdraw()
	assertSeparate(t, refresh(), spanAttribute, more)
}

func TestSeveralContextsWithoutSpansAreInvalid(t *testing.T) {
	defer publishForeign(t)()
	defer publishForeign(t)()
	_, err := open(t).ThreadLayout(t.Context())
	require.ErrorIs(t, err, reader.ErrInvalid)
	setForTest(t, spanAttribute)
	layout, err := open(t).ThreadLayout(t.Context())
	require.NoError(t, err)
	assertSeparate(t, layout, spanAttribute)
}

// An invalid attribute key must neither hide the spans nor shift the keys that follow it.
func TestInvalidTextOfSpans(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	setForTest(t, spanAttribute)
	setForTest(t, attribute.StringSlice("threadlocal.attribute_key_map", []string{"\xff", "key"}))
	layout, err := open(t).ThreadLayout(t.Context())
	require.NoError(t, err)
	assertSeparate(t, layout, spanAttribute, attribute.StringSlice("threadlocal.attribute_key_map", []string{"\uFFFD", "key"}))
	errs := handled.Take()
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], `"threadlocal.attribute_key_map" is changed`)
}

// TestSpansOfAnotherGoRuntime checks that only the first Go runtime of a process advertises spans:
// readers do not support several.
func TestSpansOfAnotherGoRuntime(t *testing.T) {
	goVersion := &commonpb.KeyValue{Key: "threadlocal.go.version", Value: &commonpb.AnyValue{}}
	for name, mapping := range map[string]string{"in its process context": "OTEL_CTX", "beside one": "OTELCTX_THREADLOCAL"} {
		t.Run(name, func(t *testing.T) {
			withdraw, err := foreigncontext.PublishAs(mapping, goVersion)
			require.NoError(t, err)
			set := func() error { return change([]attribute.KeyValue{spanAttribute}, nil) }
			require.ErrorContains(t, set(), "another Go runtime in this process publishes its spans")
			layout, err := open(t).ThreadLayout(t.Context())
			require.NoError(t, err)
			assert.Contains(t, layout.Advertisement.MappingName, mapping)
			require.NoError(t, withdraw())
			require.NoError(t, set())
			require.NoError(t, change(nil, []attribute.Key{spanAttribute.Key}))
		})
	}
}

// TestRefusedAttributesOfSpans checks that SetAttributes and RemoveAttributes do not change span
// attributes, and that a failure to advertise changes nothing.
func TestRefusedAttributesOfSpans(t *testing.T) {
	setForTest(t, spanAttribute)
	require.ErrorContains(t, resourcepublisher.SetAttributes(attribute.String("threadlocal.schema_version", "other")), "reserved")
	require.NoError(t, resourcepublisher.RemoveAttributes("threadlocal.schema_version"))
	err := change([]attribute.KeyValue{attribute.String("threadlocal.large", strings.Repeat("x", wire.MaxProcessContextPayload))}, nil)
	require.ErrorIs(t, err, resourcepublisher.ErrTooLarge)
	layout, err := open(t).ThreadLayout(t.Context())
	require.NoError(t, err)
	assertSeparate(t, layout, spanAttribute)
}

// advertiseUnderFilter sets span attributes in a process that cannot create a named mapping.
func advertiseUnderFilter(parent *childproc.Parent) {
	var handled error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { handled = errors.Join(handled, err) }))
	parent.Must(childproc.Deny(childproc.NoMemfd, childproc.NoNaming))
	err := change([]attribute.KeyValue{spanAttribute}, nil)
	parent.Send("%v, reported: %s", err, strings.ReplaceAll(handled.Error(), "\n", "; "))
	parent.Receive()
}

func TestSpansThatCannotBeAdvertisedAreReported(t *testing.T) {
	child := childproc.Start(t, "advertise under a filter", nil)
	assert.Regexp(t, "^<nil>, reported: spans cannot be advertised: .*memfd_create: operation not permitted", child.Receive())
	child.Done()
}
