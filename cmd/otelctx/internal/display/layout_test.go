// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package display

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTableFits(t *testing.T) {
	columns := []Column{
		{Head: "  AGE"}, {Head: "STATE", Spare: 1}, {Head: "FUNCTION", Min: 10, KeepEnd: true}, {Head: "NAME", Min: 8}, {Head: "GOROUTINE", Spare: 2},
	}
	rows := [][]string{
		{"  1s", "waiting", "net/http.(*conn).serve", "GET /ＡＢ/with/a/long/name", "7"},
		{"", "running", "main.x", "", "12"},
	}
	for width, want := range map[int]string{
		0: `
  AGE  STATE    FUNCTION                NAME                        GOROUTINE
  1s   waiting  net/http.(*conn).serve  GET /ＡＢ/with/a/long/name  7
       running  main.x                                              12`,
		72: `
  AGE  STATE    FUNCTION                NAME                   GOROUTINE
  1s   waiting  net/http.(*conn).serve  GET /ＡＢ/with/a/lon…  7
       running  main.x                                         12`,
		46: `
  AGE  STATE    FUNCTION        NAME
  1s   waiting  …(*conn).serve  GET /ＡＢ/wit…
       running  main.x`,
		30: `
  AGE  FUNCTION     NAME
  1s   …onn).serve  GET /ＡＢ…
       main.x`,
		10: `
  AGE  FUNCTION    NAME
  1s   …nn).serve  GET /Ａ…
       main.x`,
	} {
		assert.Equal(t, want, "\n"+strings.TrimSuffix(string(Layout{Width: width}.Table(columns, rows)), "\n"), width)
	}
	styled := []Column{{Style: func(row int) Style { return []Style{Red, ""}[row] }}, {Head: "N"}}
	assert.Equal(t, "\x1b[2m   N\x1b[0m\n\x1b[31m1\x1b[0m  a\n2  b\n", string(Layout{Colours: true}.Table(styled, [][]string{{"1", "a"}, {"2", "b"}})))
	assert.Equal(t, "1  a\n2  b\n", string(Layout{}.Table(make([]Column, 2), [][]string{{"1", "a"}, {"2", "b"}})), "no heads")
}

func TestHang(t *testing.T) {
	l := Layout{Width: 20}
	assert.Equal(t, []string{"failed  the quick", "        brown fox", "        incomprehensibilities", "        jumps"},
		l.Hang("failed  ", "the quick brown fox incomprehensibilities jumps"))
	assert.Equal(t, []string{"failed  the quick brown fox"}, Layout{}.Hang("failed  ", "the quick brown fox"))
	assert.Equal(t, "  A   one two three\n      four\n  BC  two\n", string(l.Explain([][2]string{{"A", "one two three four"}, {"BC", "two"}})))
}
