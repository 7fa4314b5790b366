// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/pprof"
	"slices"
	"unsafe"
)

var (
	errLabelLayout  = errors.New("runtime/pprof does not lay out labels as LabelMap")
	errLabelPointer = errors.New("the goroutine's label pointer is not the context's labelMap")
)

// A labelContext intercepts the label map that runtime/pprof stores in a context. pprof exports
// neither the key nor the type of that value. But pprof looks up the key in the parent context and
// uses the result. If the parent is a labelContext, it learns the key and chooses the result.
type labelContext struct {
	context.Context //nolint:containedctx // it is a context

	key, value any
}

func (c *labelContext) Value(key any) any {
	if c.key == nil {
		c.key = key
	}
	if key == c.key {
		return c.value
	}
	return nil
}

// checkLabelMap returns an error unless the label map of runtime/pprof has the layout of LabelMap.
// First it compares the types by reflection. Then it reads labels that pprof has set, as a
// LabelMap, and lets pprof read a LabelMap. It removes the labels of the calling goroutine.
func checkLabelMap() error {
	defer pprof.SetGoroutineLabels(context.Background())

	spy := &labelContext{Context: context.Background()}
	ctx := pprof.WithLabels(spy, pprof.Labels("b", "2", "a", "1"))
	if spy.key == nil {
		return fmt.Errorf("%w: labels are not in the context", errLabelLayout)
	}
	theirs := reflect.ValueOf(ctx.Value(spy.key))
	if theirs.Kind() != reflect.Pointer || !sameLayout(theirs.Type().Elem(), reflect.TypeFor[LabelMap]()) {
		return fmt.Errorf("%w: %v", errLabelLayout, theirs)
	}
	// Sound: both types have fields of the same kinds at the same offsets.
	want := []Label{{"a", "1"}, {"b", "2"}}
	if got := (*LabelMap)(theirs.UnsafePointer()).List; !slices.Equal(got, want) {
		return fmt.Errorf("%w: read %v instead of %v", errLabelLayout, got, want)
	}
	if pprof.SetGoroutineLabels(ctx); Labels() != theirs.UnsafePointer() {
		return errLabelPointer
	}

	// Let pprof read an object that begins with a LabelMap but is larger.
	ours := &struct {
		LabelMap
		more [64]byte
	}{LabelMap: LabelMap{List: []Label{{"c", "3"}, {"d", "4"}}}}
	spy.value = reflect.NewAt(theirs.Type().Elem(), unsafe.Pointer(ours)).Interface()
	var got []Label
	pprof.ForLabels(spy, func(key, value string) bool {
		got = append(got, Label{key, value})
		return true
	})
	if !slices.Equal(got, ours.List) {
		return fmt.Errorf("%w: pprof read %v instead of %v", errLabelLayout, got, ours.List)
	}
	if pprof.SetGoroutineLabels(spy); Labels() != unsafe.Pointer(ours) {
		return errLabelPointer
	}
	if pprof.SetGoroutineLabels(context.Background()); Labels() != nil {
		return errLabelPointer
	}
	return nil
}

// sameLayout reports whether a has the same memory layout as b: fields of the same kinds at the
// same offsets, and slices with elements of the same layout. b may consist only of strings and
// slices.
func sameLayout(a, b reflect.Type) bool {
	return slices.EqualFunc(leaves(a, 0), leaves(b, 0), func(x, y leaf) bool {
		return x.offset == y.offset && x.Kind() == y.Kind() &&
			(x.Kind() != reflect.Slice || sameLayout(x.Elem(), y.Elem()))
	})
}

// A leaf is a field that is not a struct, at any depth of a type.
type leaf struct {
	reflect.Type
	offset uintptr
}

func leaves(t reflect.Type, offset uintptr) []leaf {
	if t.Kind() != reflect.Struct {
		return []leaf{{t, offset}}
	}
	var all []leaf
	for i := range t.NumField() {
		f := t.Field(i)
		all = append(all, leaves(f.Type, offset+f.Offset)...)
	}
	return all
}
