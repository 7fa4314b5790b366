// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package sdkspan

import (
	"reflect"
	"sync/atomic"
	"unsafe"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Provider returns the TracerProvider that started s, or nil if it is not the SDK's.
func Provider(s sdktrace.ReadWriteSpan) *sdktrace.TracerProvider {
	tp, _ := s.TracerProvider().(*sdktrace.TracerProvider)
	return tp
}

// shutdownField is the offset of the field that a TracerProvider sets before it calls its processors'
// Shutdown. known is false if this release of the SDK has no such field.
var shutdownField = func() (f struct {
	offset uintptr
	known  bool
},
) {
	f.known = field[atomic.Bool](reflect.TypeFor[sdktrace.TracerProvider](), &f.offset, "isShutdown")
	return f
}()

// IsShutdown reports whether tp has been shut down or is being shut down. known is false if that
// cannot be read from this release of the SDK.
//
// The public API has no such method. A provider that was shut down returns a no-op tracer, but
// asking for one takes a lock that UnregisterSpanProcessor holds while it calls a processor.
//
// Sound: the offset is that of a field of this type and name, and tp keeps the provider alive.
func IsShutdown(tp *sdktrace.TracerProvider) (shutdown, known bool) {
	if !shutdownField.known {
		return false, false
	}
	return (*atomic.Bool)(unsafe.Add(unsafe.Pointer(tp), shutdownField.offset)).Load(), true
}

// resourceField is the offset of the field with a TracerProvider's resource. known is false if this
// release of the SDK has no such field.
var resourceField = func() (f struct {
	offset uintptr
	known  bool
},
) {
	f.known = field[*resource.Resource](reflect.TypeFor[sdktrace.TracerProvider](), &f.offset, "resource")
	return f
}()

// Resource returns the resource of tp. The SDK's API has it only in recorded spans. known is false if
// it cannot be read from this release of the SDK.
//
// Sound: the offset is that of a field of this type and name, tp keeps the provider alive, and the SDK
// sets the field before NewTracerProvider returns and never again.
func Resource(tp *sdktrace.TracerProvider) (r *resource.Resource, known bool) {
	if !resourceField.known {
		return nil, false
	}
	return *(**resource.Resource)(unsafe.Add(unsafe.Pointer(tp), resourceField.offset)), true
}
