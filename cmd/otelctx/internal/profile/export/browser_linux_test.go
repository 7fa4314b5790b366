// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// browser is a page in a browser that the test controls by the Chrome DevTools Protocol over a pipe.
type browser struct {
	t       *testing.T
	send    *os.File
	receive *bufio.Reader
	session string
	calls   int
	// complaints lists uncaught exceptions of the page's script and the browser's security errors.
	complaints []string
}

// message is a message of the protocol: a call, its result, or an event.
type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    any             `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
}

// openPage opens the page at path in Chromium or Chrome. It skips the test if neither is installed.
func openPage(t *testing.T, path string) *browser {
	t.Helper()
	chromium := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && chromium == "" {
			chromium = found
		}
	}
	if chromium == "" {
		t.Skip("neither chromium nor google-chrome is installed")
	}
	theirs, send, err := os.Pipe()
	require.NoError(t, err)
	receive, theirs2, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
		"--disable-dev-shm-usage", "--window-size=1200,800", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe")
	cmd.ExtraFiles = []*os.File{theirs, theirs2} // descriptors 3 and 4, where the browser expects them
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said bytes.Buffer
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		for _, f := range []*os.File{send, receive, theirs, theirs2} {
			_ = f.Close()
		}
		if t.Failed() {
			t.Logf("chromium: %s", said.Bytes())
		}
	})
	require.NoError(t, theirs2.Close()) // so that reads fail when the browser exits
	require.NoError(t, receive.SetReadDeadline(time.Now().Add(testenv.Patience)))
	b := &browser{t: t, send: send, receive: bufio.NewReader(receive)}
	var target struct {
		TargetID  string `json:"targetId"`
		SessionID string `json:"sessionId"`
	}
	require.NoError(t, json.Unmarshal(b.call("Target.createTarget", map[string]any{"url": "about:blank"}), &target))
	require.NoError(t, json.Unmarshal(b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &target))
	b.session = target.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil)
	}
	b.call("Page.navigate", map[string]any{"url": "file://" + path})
	for b.next().Method != "Page.loadEventFired" {
	}
	return b
}

// call calls a method of the protocol, and returns its result.
func (b *browser) call(method string, params any) json.RawMessage {
	b.t.Helper()
	b.calls++
	m, err := json.Marshal(message{ID: b.calls, SessionID: b.session, Method: method, Params: params})
	require.NoError(b.t, err)
	_, err = b.send.Write(append(m, 0))
	require.NoError(b.t, err)
	for {
		if m := b.next(); m.ID == b.calls {
			require.Empty(b.t, string(m.Error), method)
			return m.Result
		}
	}
}

// next returns the next result or event.
func (b *browser) next() (m message) {
	b.t.Helper()
	text, err := b.receive.ReadBytes(0)
	require.NoError(b.t, err)
	require.NoError(b.t, json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m))
	if m.Method == "Runtime.exceptionThrown" || m.Method == "Log.entryAdded" {
		b.complaints = append(b.complaints, string(text))
	}
	return m
}

// evaluate runs a JavaScript expression in the page, and returns its value.
func evaluate[T any](b *browser, expression string) (value T) {
	b.t.Helper()
	var result struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		ExceptionDetails json.RawMessage `json:"exceptionDetails"`
	}
	answer := b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true})
	require.NoError(b.t, json.Unmarshal(answer, &result))
	require.Empty(b.t, string(result.ExceptionDetails), expression)
	require.NoError(b.t, json.Unmarshal(result.Result.Value, &value), "%s", answer)
	return value
}

// TestFlameGraphInBrowser checks that a graph can be searched, zoomed and filtered, and that a page does
// not run scripts hidden in the names of functions, spans and services.
func TestFlameGraphInBrowser(t *testing.T) {
	testenv.NeedAll(t) // because Chromium takes more than ten seconds of CPU time
	path := filepath.Join(t.TempDir(), "a.html")
	require.NoError(t, write(path, HTML, requests(t)))
	b := openPage(t, path)

	type box struct {
		Text               string
		Left, Width, Depth int
		Found, Around      bool
	}
	boxes := func() map[string]box { // by text; Left and Width are percentages of the page
		all := evaluate[[]box](b, `[...document.querySelectorAll("#graph div")].map(e => ({
			Text: e.textContent, Left: Math.round(parseFloat(e.style.left)), Width: Math.round(parseFloat(e.style.width)),
			Depth: parseInt(e.style.top) / 18, Found: e.classList.contains("found"), Around: e.classList.contains("around") }))`)
		byText := map[string]box{}
		for _, one := range all {
			text := one.Text
			one.Text = ""
			byText[text] = one
		}
		return byText
	}
	set := func(id, value string) {
		evaluate[bool](b, `(() => { const e = document.getElementById("`+id+`"); e.value = "`+value+`"; return e.dispatchEvent(new Event("input")); })()`)
	}
	click := func(name string) {
		require.True(t, evaluate[bool](b, `(() => { const e = [...document.querySelectorAll("#graph div")].find(e => e.textContent === "`+name+`");
			e?.click(); return !!e; })()`), name)
	}
	summary := func() string { return evaluate[string](b, `document.getElementById("summary").textContent`) }

	// The page must show the whole graph, and no name must have run as a script.
	assert.Equal(t, "100 samples, 1.000 s of CPU time", summary())
	everything := map[string]box{
		"all":                    {Width: 100},
		hostile:                  {Width: 10, Depth: 3},
		"main.main":              {Width: 10, Depth: 2},
		"shop":                   {Left: 10, Width: 90, Depth: 1},
		"main.cart":              {Left: 10, Width: 70, Depth: 2},
		"main.hash":              {Left: 10, Width: 40, Depth: 3},
		"crypto/sha256.block":    {Left: 10, Width: 40, Depth: 4},
		"main.query":             {Left: 50, Width: 20, Depth: 3},
		"[libc.so.6]":            {Left: 50, Width: 20, Depth: 4},
		"runtime.gcBgMarkWorker": {Left: 80, Width: 20, Depth: 2},
	}
	assert.Equal(t, everything, boxes())
	title := evaluate[string](b, "document.title")
	assert.Regexp(t, `^shop, .*img src.*…, 2023-11-14 22:13:20 UTC, 1m0s, 100 Hz$`, title)
	assert.Equal(t, title, evaluate[string](b, `document.getElementById("title").textContent`))
	assert.Equal(t, 2, evaluate[int](b, "document.scripts.length"))
	assert.Zero(t, evaluate[int](b, "document.images.length"))
	assert.Zero(t, evaluate[int](b, `performance.getEntriesByType("resource").length`), "nothing else is loaded")
	shownHostile := strings.Join(strings.Fields(hostile), " ") + ", 0.100 s"
	for id, want := range map[string][]string{
		"name":     {"everything", "in spans", "outside of spans", "GET /cart, 0.500 s", "SELECT, 0.200 s", shownHostile},
		"endpoint": {"all", "GET /cart, 0.700 s", shownHostile},
	} {
		assert.Equal(t, want, evaluate[[]string](b, `[...document.getElementById("`+id+`").options].map(o => o.text)`))
	}
	assert.True(t, evaluate[bool](b, `document.getElementById("cut").hidden`))

	// Search.
	set("search", "SHA256")
	assert.Equal(t, "100 samples, 1.000 s of CPU time; found: 40.0 %", summary())
	for name, one := range boxes() {
		assert.Equal(t, name == "crypto/sha256.block", one.Found, name)
	}
	set("search", "main.") // Each sample counts once, however often the name is on its stack.
	assert.Equal(t, "100 samples, 1.000 s of CPU time; found: 80.0 %", summary())
	set("search", "")

	// Zoom in and out.
	click("main.cart")
	assert.Equal(t, map[string]box{
		"all": {Width: 100, Around: true}, "shop": {Width: 100, Depth: 1, Around: true}, "main.cart": {Width: 100, Depth: 2},
		"main.hash": {Width: 57, Depth: 3}, "crypto/sha256.block": {Width: 57, Depth: 4},
		"main.query": {Left: 57, Width: 29, Depth: 3}, "[libc.so.6]": {Left: 57, Width: 29, Depth: 4},
	}, boxes())
	assert.Equal(t, "100 samples, 1.000 s of CPU time; shown: 70.0 %", summary())
	click("all")
	assert.Equal(t, everything, boxes())

	// Colours stand for packages, and the table has the functions.
	assert.Equal(t, []string{"main", "crypto/sha256", hostile[:strings.IndexByte(hostile, '.')], "runtime", "everything else"},
		evaluate[[]string](b, `[...document.querySelectorAll("#legend span")].map(e => e.textContent)`))
	functions := func() []string {
		return evaluate[[]string](b, `[...document.querySelectorAll("#functions tr")].map(r => [...r.children].map(c => c.textContent).join("|"))`)
	}
	assert.Equal(t, []string{
		"0.400 s|40.0 %|0.400 s|40.0 %|crypto/sha256.block", "0.200 s|20.0 %|0.200 s|20.0 %|[libc.so.6]",
		"0.200 s|20.0 %|0.200 s|20.0 %|runtime.gcBgMarkWorker", "0.100 s|10.0 %|0.700 s|70.0 %|main.cart",
		"0.100 s|10.0 %|0.100 s|10.0 %|" + hostile, "0.000 s|0.0 %|0.900 s|90.0 %|shop",
		"0.000 s|0.0 %|0.400 s|40.0 %|main.hash", "0.000 s|0.0 %|0.200 s|20.0 %|main.query", "0.000 s|0.0 %|0.100 s|10.0 %|main.main",
	}, functions())
	press := func(selector string) { evaluate[bool](b, `(document.querySelector("`+selector+`").click(), true)`) }
	press("#total")
	assert.Equal(t, "0.000 s|0.0 %|0.900 s|90.0 %|shop", functions()[0])
	press("#functions tr:nth-child(2) td:last-child")
	assert.Equal(t, "100 samples, 1.000 s of CPU time; found: 70.0 %", summary(), "a click on main.cart searches it")

	// The selection is in the address, and a page with this address shows the selection.
	set("endpoint", "2")
	click("main.hash")
	address, before := evaluate[string](b, "location.hash"), boxes()
	press("#reset")
	press("#self")
	assert.Equal(t, "#", evaluate[string](b, `location.hash || "#"`))
	require.True(t, evaluate[bool](b, `new Promise(done => { addEventListener("hashchange", () => done(true)); location.hash = "`+address+`"; })`))
	assert.Equal(t, before, boxes(), address)
	assert.Equal(t, address, evaluate[string](b, "location.hash"))
	assert.True(t, evaluate[bool](b, `document.getElementById("total").classList.contains("sorted")`))
	press("#reset")
	press("#self")

	// Dark mode changes all colours.
	const colours = `[document.body, document.querySelector("#graph div")].map(e => getComputedStyle(e)).map(s => s.color + " on " + s.backgroundColor).join()`
	light := evaluate[string](b, colours)
	assert.Equal(t, "rgb(34, 34, 34) on rgb(255, 255, 255),rgb(34, 34, 34) on rgb(220, 220, 220)", light)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": "dark"}}})
	assert.Equal(t, "rgb(228, 230, 234) on rgb(22, 24, 28),rgb(228, 230, 234) on rgb(72, 76, 83)", evaluate[string](b, colours))

	// Filter by endpoint, span name and trace.
	for _, test := range []struct{ endpoint, name, trace, want string }{
		{"all", "inside", "", "80 samples, 0.800 s of CPU time"},
		{"all", "outside", "", "20 samples, 0.200 s of CPU time"},
		{"all", "2", "", "50 samples, 0.500 s of CPU time"},
		{"all", "3", "", "20 samples, 0.200 s of CPU time"},
		{"all", "2", "02" + strings.Repeat("0", 30), "10 samples, 0.100 s of CPU time"},
		{"all", "all", " 01", "40 samples, 0.400 s of CPU time"},
		{"all", "3", "01", "0 samples, 0.000 s of CPU time"},
		{"all", "outside", "01", "0 samples, 0.000 s of CPU time"},
		{"2", "all", "", "70 samples, 0.700 s of CPU time"},
		{"3", "all", "", "10 samples, 0.100 s of CPU time"},
		{"2", "3", "", "20 samples, 0.200 s of CPU time"},
		{"2", "all", "04", "0 samples, 0.000 s of CPU time"},
		{"2", "outside", "", "0 samples, 0.000 s of CPU time"},
	} {
		set("endpoint", test.endpoint)
		set("name", test.name)
		set("trace", test.trace)
		assert.Equal(t, test.want, summary(), test)
	}
	evaluate[bool](b, `(document.getElementById("reset").click(), true)`)
	assert.Equal(t, everything, boxes())

	assert.Empty(t, b.complaints)
	// The page's policy must block injected scripts, too.
	evaluate[bool](b, `(() => { const s = document.createElement("script"); s.textContent = "document.title = 'harmed'";
		document.body.append(s); return true; })()`)
	assert.Equal(t, title, evaluate[string](b, "document.title"))

	// The page offers a choice between CPU and wall-clock time only if the recording has both.
	kinds := `document.getElementById("kinds").hidden`
	assert.True(t, evaluate[bool](b, kinds))
	require.NoError(t, write(path, HTML, requests(t), waited(t)))
	b = openPage(t, path)
	assert.False(t, evaluate[bool](b, kinds))
	assert.Equal(t, "100 samples, 1.000 s of CPU time", summary())
	set("endpoint", "2")
	set("kind", "1")
	assert.Equal(t, "0.100 s of wall-clock time in spans", summary())
	assert.Equal(t, map[string]box{"all": {Width: 100}, "shop": {Width: 100, Depth: 1}, "[waiting: select]": {Width: 100, Depth: 2}}, boxes())
	set("kind", "0")
	assert.Equal(t, everything, boxes())
	assert.Empty(t, b.complaints)
}
