// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver

import (
	"context"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// valid makes all text of profiles valid UTF-8, and hands them on. Any user of the machine can
// choose a name for a thread or a file that is not. Backends refuse a message with one such name.
type valid struct{ xconsumer.Profiles }

// ConsumeProfiles implements [xconsumer.Profiles].
func (v valid) ConsumeProfiles(ctx context.Context, profiles pprofile.Profiles) error {
	d := profiles.Dictionary()
	texts := d.StringTable()
	for i, text := range texts.All() {
		if !utf8.ValidString(text) {
			texts.SetAt(i, validText(text))
		}
	}
	for _, a := range d.AttributeTable().All() {
		makeValid(a.Value())
	}
	for _, rp := range profiles.ResourceProfiles().All() {
		for _, value := range rp.Resource().Attributes().All() {
			makeValid(value)
		}
	}
	return v.Profiles.ConsumeProfiles(ctx, profiles)
}

// makeValid makes a text valid. The profiler has no other values with text in them.
func makeValid(value pcommon.Value) {
	if value.Type() == pcommon.ValueTypeStr && !utf8.ValidString(value.Str()) {
		value.SetStr(validText(value.Str()))
	}
}

// validText returns s with a replacement character for each run of what is not UTF-8.
func validText(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }
