// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package display

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                                     "",
		"plain \"text\" \\ Ελλάδα":             "plain \"text\" \\ Ελλάδα",
		"\x1b[31m":                             `\x1b[31m`,
		"a\nb\tc":                              `a\nb\tc`,
		"\u009b31m":                            `\u009b31m`,
		"\u202eevil":                           `\u202eevil`,
		"broken \xff":                          `broken \xff`,
		"replacement \ufffd":                   "replacement \ufffd",
		"beyond the BMP \U0001F600 \U000E0041": "beyond the BMP \U0001F600 " + `\U000e0041`,
	} {
		assert.Equal(t, want, Escape(in))
	}
}

func TestValueText(t *testing.T) {
	for want, v := range map[string]any{
		"plain text":                 "plain text",
		`""`:                         "",
		`" padded"`:                  " padded",
		`"true"`:                     "true",
		`"\"quoted\""`:               `"quoted"`,
		`"{}"`:                       "{}",
		"true":                       true,
		"-1":                         int64(-1),
		"null":                       nil,
		`["a","1",null]`:             []any{"a", "1", nil},
		`["\u001b\u009b"]`:           []any{"\x1b\u009b"},
		`{"<a>":"\u007f"}`:           map[string]any{"<a>": "\x7f"},
		`"AAE=" (base64 of 2 bytes)`: []byte{0, 1},
		strings.Repeat("ü", 200):     strings.Repeat("ü", 200),
		strings.Repeat("ü", 200) + "… (201 characters, --json shows all)": strings.Repeat("ü", 201),
	} {
		assert.Equal(t, want, Value(v))
	}
}

func TestEveryTextPrints(t *testing.T) {
	// The loop covers the Basic Multilingual Plane and the tag characters from U+E0001 on. These include
	// all control characters and most format characters.
	for r := range rune(0xE1000) {
		if r > 0xFFFF && r < 0xE0000 || unicode.IsPrint(r) {
			continue
		}
		s := string(r)
		text := Escape(s) + Key(s) + Value(s) + Value([]any{s})
		if i := strings.IndexFunc(text, func(shown rune) bool { return !unicode.IsPrint(shown) }); i >= 0 {
			t.Fatalf("%U is shown as %q", r, text[i:])
		}
	}
}

func TestAgeText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                             "0s",
		999 * time.Millisecond:        "0s",
		61500 * time.Millisecond:      "1m1s",
		2*time.Hour + 3*time.Minute:   "2h3m",
		49*time.Hour + 59*time.Minute: "2d1h",
	} {
		assert.Equal(t, want, Age(d))
	}
}

func TestEncodedJSONPrintsAndMeansTheSame(t *testing.T) {
	const s = "\x00\x1b\x7f\u0085\u009b\u2028\u202e\u200d\U000e0041\U0001F600 <&> \\ \" \ufffd"
	b, err := JSON(map[string]any{s: s}, "")
	require.NoError(t, err)
	assert.Equal(t, string(b), Escape(string(b)))
	var got map[string]any
	require.NoError(t, json.Unmarshal(b, &got))
	assert.Equal(t, map[string]any{s: s}, got)
}

// TestObject checks that an object written in pieces has the same text as one written at once.
func TestObject(t *testing.T) {
	type document struct {
		Text  string            `json:"text"`
		Empty []any             `json:"empty"`
		List  []map[string]int  `json:"list"`
		Map   map[string][]bool `json:"map"`
	}
	d := document{"a\u202e", []any{}, []map[string]int{{"x": 1}, {"y": 2, "z": 3}}, map[string][]bool{"k": {true, false}}}
	for _, indent := range []string{"", "  "} {
		want, err := JSON(d, indent)
		require.NoError(t, err)
		var got strings.Builder
		o := NewObject(&got, indent)
		o.Member("text", d.Text)
		o.List("empty", func(func(any) bool) {})
		o.List("list", func(yield func(any) bool) { _ = yield(d.List[0]) && yield(d.List[1]) })
		o.Map("map", func(yield func(string, any) bool) { yield("k", d.Map["k"]) })
		require.NoError(t, o.Close())
		assert.Equal(t, string(want)+"\n", got.String())
	}
}
