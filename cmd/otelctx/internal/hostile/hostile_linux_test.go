// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package hostile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/burner"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/testing/userfault"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

const roleStalling = "stalling"

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		burner.Role: burner.Run,
		roleStalling: func(parent *childproc.Parent) {
			memory, err := vma.New(wire.ProcessContextName, os.Getpagesize())
			parent.Must(err)
			parent.Must(userfault.Stall(memory.Bytes()))
			parent.Must(memory.Announce())
			parent.Send("stalling")
			parent.Receive()
		},
	})
}

const (
	nobody   = 65534
	patience = 5 * time.Minute
	// maxMemory is what a recording may take, whatever is recorded.
	maxMemory = 150 << 20
)

// needRoot skips what takes root's rights: other users' processes, and files that give
// rights.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("attacking another user takes root: CAP_SETUID, CAP_SETFCAP")
	}
}

// publicDir returns a directory that every user can read.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostile-") // t.TempDir is closed to others
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// install copies a program.
func install(t *testing.T, program, path string, mode os.FileMode) string {
	t.Helper()
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, content, mode.Perm()))
	require.NoError(t, os.Chmod(path, mode))
	return path
}

// command returns the path of otelctx: another one for who wants to see what it makes of the
// attacks.
func command(t *testing.T) string {
	t.Helper()
	if !childproc.Capable(t, unix.CAP_BPF) || !childproc.Capable(t, unix.CAP_PERFMON) {
		t.Skip("recording takes CAP_BPF and CAP_PERFMON")
	}
	if path := os.Getenv("OTELCTX_TEST_COMMAND"); path != "" {
		return path
	}
	return programs.Build(t, programs.Static, "../..", ".")
}

// attacker returns the path of the program in C, linked to fixed addresses.
func attacker(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	exe := filepath.Join(publicDir(t), "attacker")
	out, err := exec.Command(cc, "-O2", "-fno-omit-frame-pointer", "-static", "-no-pie", "-o", exe, "testdata/hostile.c").CombinedOutput()
	if strings.Contains(string(out), "cannot find -lc") {
		t.Skip("no static C library")
	}
	require.NoError(t, err, string(out))
	return exe
}

// process is a program that runs until the end of the test.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *lineReader
}

type lineReader struct {
	r    io.Reader
	rest []byte
}

func (l *lineReader) line() string {
	for !bytes.Contains(l.rest, []byte("\n")) {
		b := make([]byte, 4096)
		n, err := l.r.Read(b)
		if l.rest = append(l.rest, b[:n]...); err != nil {
			return err.Error()
		}
	}
	line, rest, _ := bytes.Cut(l.rest, []byte("\n"))
	l.rest = rest
	return string(line)
}

// start starts a program, as another user if uid is not negative, and waits for a line.
func start(t *testing.T, uid int, want, path string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	cmd.Dir = "/"
	if uid >= 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := &process{t, cmd, stdin, &lineReader{r: stdout}}
	require.Equal(t, want, p.lines.line())
	return p
}

// exec has the attacker become another program, and waits for its line.
func (p *process) exec(path, want string) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.stdin, path)
	require.NoError(p.t, err)
	require.Equal(p.t, want, p.lines.line())
}

func (p *process) PID() int { return p.cmd.Process.Pid }

// recorder is otelctx record at work.
type recorder struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	file           string
	// memory is the most that it has had so far, in bytes. What the kernel says at the end
	// counts what this process had when it started it.
	memory atomic.Int64
}

// watchMemory looks how much memory the recorder takes, until it has ended.
func (r *recorder) watchMemory() {
	for {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
		_, after, ok := strings.Cut(string(status), "\nVmHWM:")
		if err != nil || !ok {
			return
		}
		var kB int64
		if _, err := fmt.Sscan(after, &kB); err == nil {
			r.memory.Store(kB << 10)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// record starts to record, as another user if uid is not negative.
func record(t *testing.T, uid int, otelctx string, args ...string) *recorder {
	t.Helper()
	dir := publicDir(t)
	if uid >= 0 {
		require.NoError(t, os.Chown(dir, uid, uid))
	}
	r := &recorder{t: t, file: filepath.Join(dir, "p.pb.gz")}
	r.cmd = exec.Command(otelctx, append([]string{"record", "--json", "--top=0", "--duration=0", "--freq=997", "-o", r.file}, args...)...)
	r.cmd.Stdout, r.cmd.Stderr, r.cmd.Dir = &r.stdout, &r.stderr, "/"
	if uid >= 0 {
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	require.NoError(t, r.cmd.Start())
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	})
	go r.watchMemory()
	return r
}

// document is what is looked at of what record --json prints.
type document struct {
	Samples, Attributed, Lost uint64
	Ended                     bool
	Processes                 []struct {
		PID                 int
		Service             string
		Samples, Attributed uint64
	}
	Spans []struct {
		TraceID string `json:"trace_id"`
		Samples uint64
	}
}

// samples returns how many samples there are of a process.
func (d *document) samples(pid int) (n uint64) {
	for _, p := range d.Processes {
		if p.PID == pid {
			n += p.Samples
		}
	}
	return n
}

// end interrupts the recording. It has gone well, and has not taken too much memory.
func (r *recorder) end() (*document, *pprof.Profile) {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(os.Interrupt))
	return r.finish()
}

func (r *recorder) finish() (*document, *pprof.Profile) {
	r.t.Helper()
	hung := time.AfterFunc(patience, func() { _ = r.cmd.Process.Kill() })
	defer hung.Stop()
	require.NoError(r.t, r.cmd.Wait(), r.stderr.String())
	assert.Less(r.t, r.memory.Load(), int64(maxMemory))
	d := &document{}
	require.NoError(r.t, json.Unmarshal(r.stdout.Bytes(), d), r.stdout.String())
	content, err := os.ReadFile(r.file)
	require.NoError(r.t, err)
	p, err := pprof.ParseData(content)
	require.NoError(r.t, err)
	require.NoError(r.t, p.CheckValid())
	return d, p
}

// recorded waits until processes are recorded: somebody waits for their ends.
func (r *recorder) recorded(pids ...int) *recorder {
	r.t.Helper()
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fdinfo/", r.cmd.Process.Pid)
		require.Eventually(r.t, func() bool {
			fds, err := os.ReadDir(dir)
			for _, fd := range fds {
				if info, _ := os.ReadFile(dir + fd.Name()); strings.Contains(string(info), fmt.Sprintf("\nPid:\t%d\n", pid)) {
					return true
				}
			}
			return err != nil || len(fds) == 0 // It has ended: that is for the test to find.
		}, patience, 10*time.Millisecond)
	}
	return r
}

// startService starts a service that publishes as it should.
func startService(t *testing.T) *childproc.Child {
	t.Helper()
	c := childproc.Start(t, burner.Role, nil)
	require.Equal(t, "burning", c.Ask("%s", burner.Words(burner.Records)))
	return c
}

func text(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}}}
}

func number(key string, n int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: n}}}
}

// publish returns the arguments with which the attacker publishes a resource, and a ring at
// its fixed address.
func publish(t *testing.T, exe string, attributes ...*commonpb.KeyValue) []string {
	t.Helper()
	out, err := exec.Command(exe, "address").Output()
	require.NoError(t, err)
	address, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	require.NoError(t, err)
	fields := &commonpb.KeyValueList{}
	for _, f := range wire.SlotFields(wire.RingLayout1) {
		fields.Values = append(fields.Values, number(f.Name, int64(f.Offset)))
	}
	const slots = "threadlocal.slots."
	payload, err := proto.Marshal(&processcontextpb.ProcessContext{
		Resource: &resourcepb.Resource{Attributes: attributes},
		Attributes: []*commonpb.KeyValue{
			text("threadlocal.schema_version", "otelctx_slots_v1"),
			number(slots+"address", address), number(slots+"layout", wire.RingLayout1), number(slots+"capacity", 65536),
			number(slots+"header_size", wire.RingHeaderSize1), number(slots+"slot_size", wire.SlotSize1), text(slots+"index", "thread"),
			{Key: slots + "fields", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: fields}}},
		},
	})
	require.NoError(t, err)
	var ring []byte
	for _, word := range []uint32{wire.RingMagic, wire.RingLayout1, 65536, wire.SlotSize1} {
		ring = binary.NativeEndian.AppendUint32(ring, word)
	}
	return []string{"publish", strconv.Itoa(wire.ProcessContextVersion), hex.EncodeToString(payload), hex.EncodeToString(ring)}
}

// stolen is what the secret looks like as a trace's id.
var stolen = strings.Repeat("53", 16)

// isIn reports whether a sample is in a file.
func isIn(s *pprof.Sample, path string) bool {
	for _, l := range s.Location {
		if l.Mapping != nil && l.Mapping.File == path {
			return true
		}
	}
	return false
}

// TestSetuidExec has an ordinary user record a program of his own, with otelctx as it is to be
// installed, and that program become a privileged one (row 1).
func TestSetuidExec(t *testing.T) {
	needRoot(t)
	dir, attacker := publicDir(t), attacker(t)
	otelctx := install(t, command(t), filepath.Join(dir, "otelctx"), 0o755)
	// cap_bpf,cap_perfmon+ep: struct vfs_cap_data, version 2.
	capabilities := make([]byte, 20)
	binary.LittleEndian.PutUint32(capabilities, 0x02000001)
	binary.LittleEndian.PutUint32(capabilities[12:], 1<<(unix.CAP_BPF-32)|1<<(unix.CAP_PERFMON-32))
	if err := unix.Setxattr(otelctx, "security.capability", capabilities, 0); err != nil {
		t.Skipf("a file system with capabilities, and CAP_SETFCAP: %v", err)
	}
	victim := install(t, attacker, filepath.Join(dir, "victim"), os.ModeSetuid|0o755)

	p := start(t, nobody, "published", attacker, publish(t, attacker, text("service.name", "attacker"))...)
	r := record(t, nobody, otelctx, strconv.Itoa(p.PID())).recorded(p.PID())
	burner.AwaitUse(t, p, 300*time.Millisecond)
	p.exec(victim, "secret")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	require.NoError(t, err)
	require.Contains(t, string(status), "Uid:\t65534\t0\t0\t0\n", "the program is privileged")
	burner.AwaitUse(t, p, time.Second/2)
	d, profile := r.finishOrEnd()
	assert.Positive(t, d.Samples, "before")
	for _, s := range d.Spans {
		assert.NotEqual(t, stolen, s.TraceID)
	}
	for _, s := range profile.Sample {
		require.False(t, isIn(s, victim), "a stack of the privileged program")
	}
}

// finishOrEnd ends a recording that may have ended by itself.
func (r *recorder) finishOrEnd() (*document, *pprof.Profile) {
	_ = r.cmd.Process.Signal(os.Interrupt)
	return r.finish()
}

// TestKernelAddresses has an ordinary user, who may not know where the kernel's functions are,
// record those (row 1).
func TestKernelAddresses(t *testing.T) {
	needRoot(t)
	dir := publicDir(t)
	otelctx := install(t, command(t), filepath.Join(dir, "otelctx"), 0o755)
	capabilities := make([]byte, 20)
	binary.LittleEndian.PutUint32(capabilities, 0x02000001)
	binary.LittleEndian.PutUint32(capabilities[4:], 1<<unix.CAP_SYS_PTRACE)
	binary.LittleEndian.PutUint32(capabilities[12:], 1<<(unix.CAP_BPF-32)|1<<(unix.CAP_PERFMON-32)|1<<(unix.CAP_SYSLOG-32))
	if err := unix.Setxattr(otelctx, "security.capability", capabilities, 0); err != nil {
		t.Skipf("a file system with capabilities, and CAP_SETFCAP: %v", err)
	}
	out, err := nobodys("head", "-1", "/proc/kallsyms").Output()
	require.NoError(t, err)
	if !strings.HasPrefix(string(out), "0000000000000000 ") {
		t.Skip("the kernel shows its addresses to everybody (kernel.kptr_restrict)")
	}
	p := start(t, nobody, "frames", attacker(t), "frames")
	r := record(t, nobody, otelctx, "--kernel", strconv.Itoa(p.PID())).recorded(p.PID())
	burner.AwaitUse(t, p, time.Second/2)
	d, profile := r.end()
	assert.Positive(t, d.Samples)
	for _, l := range profile.Location {
		require.Less(t, l.Address, uint64(0xffff_8000_0000_0000), "an address of the kernel's")
	}

	// Nor does the file's CAP_SYS_PTRACE let its user look into the processes of others.
	service := startService(t)
	got := nobodys(otelctx, "record", "--duration=1s", strconv.Itoa(service.PID()))
	message, err := got.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(message), "not permitted")
}

func nobodys(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.Dir = "/"
	return cmd
}

// TestExec has a service's process run another program: nothing of that is the service's
// (row 2).
func TestExec(t *testing.T) {
	otelctx, attacker := command(t), attacker(t)
	other := install(t, attacker, filepath.Join(publicDir(t), "other"), 0o755)
	service := startService(t) // The recording is one of all.
	r := record(t, -1, otelctx, "--all").recorded(service.PID())
	for range testenv.Rounds(1, 10) {
		p := start(t, -1, "published", attacker, publish(t, attacker, text("service.name", "before"))...)
		r.recorded(p.PID())
		burner.AwaitUse(t, p, 300*time.Millisecond)
		p.exec(other, "secret")
		burner.AwaitUse(t, p, 500*time.Millisecond)
	}
	_, profile := r.end()
	before := 0
	for _, s := range profile.Sample {
		if s.Label["service.name"] == nil || s.Label["service.name"][0] != "before" {
			continue
		}
		before++
		require.False(t, isIn(s, other), "a stack of the other program")
	}
	assert.Positive(t, before)
}

// TestReusedPID has another process get the id of a service that has just ended (row 2).
func TestReusedPID(t *testing.T) {
	needRoot(t)
	otelctx, attacker := command(t), attacker(t)
	other := install(t, attacker, filepath.Join(publicDir(t), "other"), 0o755)
	service := startService(t)
	r := record(t, -1, otelctx, "--all").recorded(service.PID())
	reused := 0
	for range 20 {
		p := start(t, -1, "published", attacker, publish(t, attacker, text("service.name", "before"))...)
		r.recorded(p.PID())
		burner.AwaitUse(t, p, 100*time.Millisecond)
		require.NoError(t, p.cmd.Process.Kill())
		_ = p.cmd.Wait()
		require.NoError(t, os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(p.PID()-1)), 0))
		next := start(t, -1, "secret", other, "secret")
		if next.PID() == p.PID() {
			reused++
			burner.AwaitUse(t, next, 500*time.Millisecond)
		}
		require.NoError(t, next.cmd.Process.Kill())
		if reused == testenv.Rounds(1, 5) {
			break
		}
	}
	if reused == 0 {
		t.Skip("no process could be given the id of another one")
	}
	_, profile := r.end()
	before := 0
	for _, s := range profile.Sample {
		if s.Label["service.name"] != nil && s.Label["service.name"][0] == "before" {
			before++
			require.False(t, isIn(s, other), "a stack of the other program")
		}
	}
	assert.Positive(t, before)
}

// attack is something that goes on beside a service which is recorded.
type attack struct {
	name string
	// said is what otelctx says of it, if anything.
	said  string
	begin func(t *testing.T, attacker string)
}

var attacks = []attack{
	{"what no profile can have", "attributes were left out", func(t *testing.T, attacker string) { // row 3
		index := &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValueStrindex{StringValueStrindex: 1 << 30}}
		for _, attributes := range [][]*commonpb.KeyValue{
			{text("service.name", "hostile"), text("", "no key")},
			{{Key: "value", Value: index}},
			{{Key: "key", KeyStrindex: 3, Value: &commonpb.AnyValue{}}},
		} {
			start(t, -1, "published", attacker, publish(t, attacker, attributes...)...)
		}
		for _, name := range []string{"x\xff", "x\xfe", "x\x1b[31m"} {
			exe := install(t, attacker, filepath.Join(publicDir(t), name), 0o755)
			start(t, -1, "published", exe, publish(t, exe, text("service.name", "hostile"))...)
		}
	}},
	{"60,000 mappings", "", func(t *testing.T, attacker string) { // row 4
		start(t, -1, "mapped", attacker, "map", codeFile(t, 1), "60000", codeOffset)
	}},
	{"4,000 mappings of a million symbols", "", func(t *testing.T, attacker string) {
		start(t, -1, "mapped", attacker, "map", codeFile(t, 1<<20), "4000", codeOffset)
	}},
	{"random frames", "", func(t *testing.T, attacker string) { start(t, -1, "frames", attacker, "frames") }},
	{"stalling readers", "makes those who read it wait", func(t *testing.T, _ string) {
		needRoot(t)
		for range 17 {
			c := childproc.Start(t, roleStalling, nil)
			require.Equal(t, "stalling", c.Receive())
		}
	}},
}

// codeOffset is where in a codeFile its code is.
const codeOffset = "4096"

// codeFile writes an ELF file with so many symbols at one address, whose code counts down and
// returns.
func codeFile(t *testing.T, symbols int) string {
	t.Helper()
	const (
		code    = 4096
		base    = 0x400000
		symtab  = 8192
		section = 64
	)
	//	mov $20000, %ecx; 1: dec %ecx; jnz 1b; ret
	text := []byte{0xb9, 0x20, 0x4e, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xc3}
	names := []byte("\x00same\x00")
	strtab := symtab + symbols*elf.Sym64Size
	headers := strtab + len(names)
	var b bytes.Buffer
	put := func(at int, v any) {
		b.Write(make([]byte, at-b.Len()))
		require.NoError(t, binary.Write(&b, binary.LittleEndian, v))
	}
	put(0, elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1},
		Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: section, Phentsize: 56, Phnum: 1,
		Shoff: uint64(headers), Shentsize: section, Shnum: 3, Shstrndx: 2, Ehsize: section,
	})
	put(section, elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_X | elf.PF_R), Off: code, Vaddr: base, Filesz: 64, Memsz: 64,
	})
	put(code, text)
	table := make([]elf.Sym64, symbols)
	for i := range table {
		table[i] = elf.Sym64{Name: 1, Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC), Shndx: 1, Value: base, Size: 64}
	}
	put(symtab, table)
	put(strtab, names)
	put(headers, []elf.Section64{
		{},
		{Type: uint32(elf.SHT_SYMTAB), Off: symtab, Size: uint64(symbols * elf.Sym64Size), Link: 2, Entsize: elf.Sym64Size},
		{Type: uint32(elf.SHT_STRTAB), Off: uint64(strtab), Size: uint64(len(names))},
	})
	path := filepath.Join(publicDir(t), "code")
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o755))
	return path
}

// TestBeside records a service beside each attacker: none of its samples is lost, and there
// is a profile that can be read (rows 3 and 4).
func TestBeside(t *testing.T) {
	otelctx, attacker := command(t), attacker(t)
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			a.begin(t, attacker)
			service := startService(t)
			r := record(t, -1, otelctx, "--all").recorded(service.PID())
			burner.AwaitUse(t, service, time.Second/2)
			d, profile := r.end()
			assertRecorded(t, d, profile, service.PID())
			usage, ok := r.cmd.ProcessState.SysUsage().(*syscall.Rusage)
			require.True(t, ok)
			used := time.Duration(syscall.TimevalToNsec(usage.Utime) + syscall.TimevalToNsec(usage.Stime))
			t.Logf("%v of the processor, %d MB, %d samples; said: %s", used, r.memory.Load()>>20, d.Samples, r.stderr.String())
			assert.Less(t, used, time.Second)
			assert.Contains(t, r.stderr.String(), a.said)
		})
	}
}

// assertRecorded asserts that a service's samples are there, and in spans.
func assertRecorded(t *testing.T, d *document, profile *pprof.Profile, pid int) {
	t.Helper()
	assert.Zero(t, d.Lost)
	assert.Greater(t, d.samples(pid), uint64(997/2*9/10))
	inSpans := 0
	for _, s := range profile.Sample {
		if s.NumLabel["process.pid"] != nil && s.NumLabel["process.pid"][0] == int64(pid) && s.Label["span_id"] != nil {
			inSpans++
		}
	}
	assert.Positive(t, inSpans)
}

// TestStalled ends when it is to, although many processes make their readers wait (row 4).
func TestStalled(t *testing.T) {
	otelctx := command(t)
	attacks[len(attacks)-1].begin(t, "")
	service := startService(t)
	list := exec.Command(otelctx, "list", "--json")
	out, err := list.Output()
	require.NoError(t, err)
	assert.Contains(t, string(out), fmt.Sprintf(`"pid": %d,`, service.PID()))

	// Much less than who waits for an answer of one process waits.
	r := record(t, -1, otelctx, "--all")
	r.recorded(service.PID())
	burner.AwaitUse(t, service, 300*time.Millisecond)
	d, _ := r.end()
	assert.Positive(t, d.samples(service.PID()))
	assert.Equal(t, 17, strings.Count(r.stderr.String(), "makes those who read it wait"), r.stderr.String())
}

// TestFilesAreNotOpened maps a file, and puts something else in its place that acts when it is
// opened (row 6).
func TestFilesAreNotOpened(t *testing.T) {
	needRoot(t)
	otelctx := install(t, command(t), filepath.Join(publicDir(t), "otelctx"), 0o755)
	capabilities := make([]byte, 20)
	binary.LittleEndian.PutUint32(capabilities, 0x02000001)
	binary.LittleEndian.PutUint32(capabilities[12:], 1<<(unix.CAP_BPF-32)|1<<(unix.CAP_PERFMON-32))
	if err := unix.Setxattr(otelctx, "security.capability", capabilities, 0); err != nil {
		t.Skipf("a file system with capabilities, and CAP_SETFCAP: %v", err)
	}
	code := codeFile(t, 1)
	p := start(t, nobody, "mapped", attacker(t), "map", code, "1", codeOffset)
	require.NoError(t, os.Remove(code))
	require.NoError(t, unix.Mkfifo(code, 0o666))
	require.NoError(t, os.Chmod(code, 0o666))
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(t, err)
	defer func() { _ = unix.Close(watch) }()
	_, err = unix.InotifyAddWatch(watch, code, unix.IN_OPEN)
	require.NoError(t, err)
	r := record(t, nobody, otelctx, strconv.Itoa(p.PID())).recorded(p.PID())
	burner.AwaitUse(t, p, time.Second/2)
	d, _ := r.end()
	assert.Positive(t, d.Samples)
	_, err = unix.Read(watch, make([]byte, 4096))
	require.ErrorIs(t, err, unix.EAGAIN, "the pipe was opened")
}

// TestStalledFile has a mapped file on a file system that gives no answer to who opens it
// (row 6).
func TestStalledFile(t *testing.T) {
	needRoot(t)
	otelctx := command(t)
	code := codeFile(t, 1)
	p := start(t, -1, "mapped", attacker(t), "map", code, "1", codeOffset)
	service := startService(t)
	// Whoever opens the file waits until this process lets it go on.
	fan, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err != nil {
		t.Skipf("files that do not answer take fanotify and CAP_SYS_ADMIN: %v", err)
	}
	held := os.NewFile(uintptr(fan), "fanotify")
	defer func() { _ = held.Close() }()
	if err := unix.FanotifyMark(fan, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, code); err != nil {
		t.Skipf("files that do not answer take CONFIG_FANOTIFY_ACCESS_PERMISSIONS: %v", err)
	}
	r := record(t, -1, otelctx, strconv.Itoa(p.PID())).recorded(p.PID())
	burner.AwaitUse(t, p, time.Second/2)
	_, err = held.Read(make([]byte, 4096))
	require.NoError(t, err, "it is being opened")
	d, _ := r.end()
	assert.Positive(t, d.Samples)

	// Others have their names.
	r = record(t, -1, otelctx, "--all").recorded(service.PID())
	burner.AwaitUse(t, service, time.Second/2)
	d, profile := r.end()
	assertRecorded(t, d, profile, service.PID())
}
