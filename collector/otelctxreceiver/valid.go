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

// valid replaces invalid UTF-8 in profiles before it passes them on. Any user can give a thread or
// a file a name that is not UTF-8, and a single such name makes backends reject the whole message.
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

// makeValid replaces invalid UTF-8 in a string value. It ignores other kinds of values, because the
// profiler uses none that contain text.
func makeValid(value pcommon.Value) {
	if value.Type() == pcommon.ValueTypeStr && !utf8.ValidString(value.Str()) {
		value.SetStr(validText(value.Str()))
	}
}

// validText returns s with each run of invalid UTF-8 replaced by U+FFFD.
func validText(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }
