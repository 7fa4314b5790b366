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
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
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

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/ticks"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

const (
	frequency = 997
	// maxMemory is the maximum memory of a recorder in bytes, whatever it records.
	maxMemory = 150 << 20
	// maxOutput is the maximum memory in bytes of a command that keeps all of its output in memory.
	maxOutput = 400 << 20
	// maxTime is the maximum CPU time of a command that reads a process for at most a second.
	maxTime = 10 * time.Second
	// serviceUse is the CPU time that a service uses while it is recorded, enough for hundreds of samples.
	serviceUse = time.Second / 2
)

// user says who runs a program: the user who runs the test, or an ordinary user.
type user bool

const (
	self   user = false
	nobody user = true
)

func (u user) String() string {
	if u == nobody {
		return "ordinary user"
	}
	return "self"
}

// command returns a command that runs as the user u.
func (u user) command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = "/"
	if u == nobody {
		childproc.AsNobody(cmd)
	}
	return cmd
}

// start starts a program and waits until it prints want.
func (u user) start(t *testing.T, want, path string, args ...string) *childproc.Child {
	t.Helper()
	c := childproc.Run(t, u.command(path, args...))
	c.Expect(want)
	return c
}

// needRoot skips the test unless it runs as root. Tests need root to run programs as another user or to set
// file capabilities.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("attacking another user needs root: CAP_SETUID, CAP_SETFCAP")
	}
}

// recordingCommand returns the path of the otelctx to attack, for tests that record. It skips the test if
// recording is not permitted.
func recordingCommand(t *testing.T) string {
	t.Helper()
	if !childproc.Capable(t, unix.CAP_BPF) || !childproc.Capable(t, unix.CAP_PERFMON) {
		t.Skip("recording needs CAP_BPF and CAP_PERFMON")
	}
	return builtCommand(t)
}

// builtCommand returns the path of the otelctx to attack, for tests that read processes but take no samples. It
// skips the test if reading is not permitted.
func builtCommand(t *testing.T) string {
	t.Helper()
	childproc.NeedReading(t)
	path := os.Getenv("OTELCTX_TEST_COMMAND")
	if path == "" {
		path = programs.Build(t, programs.Static, "../..", ".")
	}
	return programs.Public(t, path, "otelctx")
}

// installedCommand returns the path of an otelctx that has the documented file capabilities and the
// additional capabilities in more.
func installedCommand(t *testing.T, more ...int) string {
	t.Helper()
	needRoot(t)
	path := recordingCommand(t)
	granted := make([]byte, 20) // struct vfs_cap_data, version 2
	binary.LittleEndian.PutUint32(granted, 0x02000001)
	for _, c := range append(more, unix.CAP_BPF, unix.CAP_PERFMON) {
		granted[4+c/32*8+c%32/8] |= 1 << (c % 8)
	}
	if err := unix.Setxattr(path, "security.capability", granted, 0); err != nil {
		t.Skipf("needs a file system with capabilities, and CAP_SETFCAP: %v", err)
	}
	return path
}

// attacker builds the C program testdata/hostile.c, linked at fixed addresses, and returns its path.
func attacker(t *testing.T) string {
	t.Helper()
	return programs.Public(t, programs.C(t, "testdata/hostile.c", "-fno-omit-frame-pointer", "-static", "-no-pie"), "attacker")
}

// recorder is a running otelctx command, in most tests otelctx record.
type recorder struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr programs.Output
	file   string
	// memory is the recorder's peak memory in bytes. watchMemory reads it repeatedly, because the peak that the
	// kernel reports after the exit would include the memory of this process when it started the recorder.
	memory atomic.Int64
}

// watchMemory updates memory until the recorder exits.
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

// record starts recording to a pprof file.
func (u user) record(t *testing.T, otelctx string, args ...string) *recorder {
	t.Helper()
	return u.recordTo(t, "p.pb.gz", otelctx, args...)
}

// recordTo starts recording to a file with the given name in a new directory.
func (u user) recordTo(t *testing.T, name, otelctx string, args ...string) *recorder {
	t.Helper()
	dir := programs.PublicDir(t)
	r := &recorder{t: t, file: filepath.Join(dir, name)}
	r.cmd = u.command(otelctx, append([]string{"record", "--json", "--top=0", "--duration=0", fmt.Sprintf("--freq=%d", frequency), "-o", r.file}, args...)...)
	if u == nobody {
		require.NoError(t, os.Chown(dir, childproc.Nobody, childproc.Nobody))
	}
	r.begin()
	return r
}

func (r *recorder) begin() {
	t := r.t
	t.Helper()
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	childproc.First(func() { require.NoError(t, r.cmd.Start()) })
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	})
	go r.watchMemory()
}

// run runs an otelctx command and returns its output. The command must succeed within the given memory in bytes
// and within maxTime. Its garbage collector stops the program: otherwise, the peak memory would depend on how much
// CPU time the collector gets.
func (u user) run(t *testing.T, memory int64, otelctx string, args ...string) (stdout []byte) {
	t.Helper()
	r := &recorder{t: t, cmd: u.command(otelctx, args...)}
	r.cmd.Env = append(os.Environ(), "GODEBUG=gcstoptheworld=1")
	r.begin()
	require.NoError(t, r.cmd.Wait(), r.stderr.String())
	used := r.cmd.ProcessState.UserTime() + r.cmd.ProcessState.SystemTime()
	t.Logf("%s: %v of the processor, %d MB", args[0], used, r.memory.Load()>>20)
	assert.Less(t, r.memory.Load(), memory)
	assert.Less(t, used, maxTime)
	return r.stdout.Bytes()
}

// document is the part of the output of record --json that the tests use.
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

func (d *document) samples(pid int) (n uint64) {
	for _, p := range d.Processes {
		if p.PID == pid {
			n += p.Samples
		}
	}
	return n
}

// end ends the recording, and returns its output and its pprof profile.
func (r *recorder) end() (*document, *pprof.Profile) {
	r.t.Helper()
	d := r.interrupt()
	content, err := os.ReadFile(r.file)
	require.NoError(r.t, err)
	p, err := pprof.ParseData(content)
	require.NoError(r.t, err)
	require.NoError(r.t, p.CheckValid())
	return d, p
}

// interrupt interrupts the recording, unless it has already ended. The recorder must succeed and stay
// within its memory limit.
func (r *recorder) interrupt() *document {
	r.t.Helper()
	_ = r.cmd.Process.Signal(os.Interrupt)
	var hung atomic.Bool
	timeout := time.AfterFunc(testenv.Patience, func() {
		hung.Store(true)
		_ = r.cmd.Process.Kill()
	})
	defer timeout.Stop()
	err := r.cmd.Wait()
	require.False(r.t, hung.Load(), "the recorder did not end when it was interrupted")
	require.NoError(r.t, err, r.stderr.String())
	assert.Less(r.t, r.memory.Load(), int64(maxMemory))
	d := &document{}
	require.NoError(r.t, json.Unmarshal(r.stdout.Bytes(), d), r.stdout.String())
	return d
}

// exits yields the ids of the recorded processes. It finds them through the recorder's descriptors: the recorder
// opens a pidfd for each process to notice when the process exits.
func (r *recorder) exits(yield func(pid int) bool) {
	dir := fmt.Sprintf("/proc/%d/fdinfo/", r.cmd.Process.Pid)
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		info, _ := os.ReadFile(dir + fd.Name())
		_, after, ok := strings.Cut(string(info), "\nPid:\t")
		line, _, _ := strings.Cut(after, "\n")
		if pid, err := strconv.Atoi(line); ok && err == nil && !yield(pid) {
			return
		}
	}
}

// process is a process id that can be passed to [busyservice.Used].
type process int

func (p process) PID() int { return int(p) }

// recordedUse returns the CPU time that the recorded processes have used.
func (r *recorder) recordedUse() (sum time.Duration) {
	for pid := range r.exits {
		used, _ := busyservice.Used(process(pid)) // 0 if the process has ended
		sum += used
	}
	return sum
}

// recorded waits until the recorder records the process pid.
func (r *recorder) recorded(pid int) *recorder {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		for recorded := range r.exits {
			if recorded == pid {
				return true
			}
		}
		return false
	}, testenv.Patience, 10*time.Millisecond, "the process is not recorded")
	return r
}

// requireRecorded ends the recording after the service has used more than [serviceUse]. No samples may be lost, the
// service must have at least 90 % of the samples that another timer takes meanwhile, and some of them must be in spans.
func (r *recorder) requireRecorded(service *childproc.Child) {
	r.t.Helper()
	r.awaitNames(service)
	timer := ticks.Start(r.t, service.PID(), frequency)
	busyservice.AwaitUse(r.t, service, serviceUse*11/10)
	r.requireSamples(service, timer)
}

// awaitNames waits until the recorder has opened the service's program. From then on it can symbolize samples of
// the service.
func (r *recorder) awaitNames(service *childproc.Child) {
	r.t.Helper()
	r.recorded(service.PID())
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", service.PID()))
	require.NoError(r.t, err)
	childproc.AwaitOpen(r.t, r.cmd.Process.Pid, program)
}

// requireSamples ends the recording of a service, and makes the checks of [recorder.requireRecorded]. The timer was started
// when the service was already recorded.
func (r *recorder) requireSamples(service *childproc.Child, timer *ticks.Counter) *document {
	r.t.Helper()
	service.Stop() // Leave the processors to the recorder.
	defer service.Continue()
	expected := timer.Count(r.t)
	doc, profile := r.end()
	assert.Zero(r.t, doc.Lost)
	assert.Positive(r.t, expected)
	assert.Greater(r.t, doc.samples(service.PID()), expected*9/10)
	inSpans := 0
	for _, s := range profile.Sample {
		if s.NumLabel["process.pid"] != nil && s.NumLabel["process.pid"][0] == int64(service.PID()) && s.Label["span_id"] != nil {
			inSpans++
		}
	}
	assert.Positive(r.t, inSpans)
	return doc
}

// startService starts a service that publishes correctly, as the user u. No other process runs the same
// program file.
func startService(t *testing.T, u user) *childproc.Child {
	t.Helper()
	return startBusyService(t, u, busyservice.Records)
}

// startBusyService starts a busy service as the user u. No other process runs the same program file.
func startBusyService(t *testing.T, u user, words ...string) *childproc.Child {
	t.Helper()
	c := childproc.Start(t, busyservice.Role, func(cmd *exec.Cmd) {
		cmd.Path = programs.Public(t, cmd.Path, "service")
		if u == nobody {
			childproc.AsNobody(cmd)
		}
	})
	require.Equal(t, "burning", c.Ask("%s", busyservice.Words(words...)))
	return c
}

func text(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}}}
}

func number(key string, n int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: n}}}
}

// capacity is the number of slots in the attacker's ring.
const capacity = 65536

// publish returns the arguments that make the attacker publish a resource, and the ring at its fixed
// address.
func publish(t *testing.T, exe string, attributes ...*commonpb.KeyValue) []string {
	t.Helper()
	return publishRing(t, exe, capacity, attributes...)
}

func publishRing(t *testing.T, exe string, capacity int, attributes ...*commonpb.KeyValue) []string {
	t.Helper()
	out, err := exec.Command(exe, "address").Output()
	require.NoError(t, err)
	address, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	require.NoError(t, err)
	const slots = "threadlocal.slots."
	var ring []byte
	for _, word := range []uint32{wire.RingMagic, wire.RingLayout1, uint32(capacity), wire.SlotSize1} {
		ring = binary.NativeEndian.AppendUint32(ring, word)
	}
	return advertise(t, ring, attributes,
		text("threadlocal.schema_version", "otelctx_slots_v1"),
		number(slots+"address", address), number(slots+"layout", wire.RingLayout1), number(slots+"capacity", int64(capacity)),
		number(slots+"header_size", wire.RingHeaderSize1), number(slots+"slot_size", wire.SlotSize1), text(slots+"index", "thread"),
		offsets(slots+"fields", wire.SlotFields(wire.RingLayout1)),
	)
}

// offsets returns an attribute whose value lists the offsets of fields.
func offsets(key string, fields []wire.Field) *commonpb.KeyValue {
	list := &commonpb.KeyValueList{}
	for _, f := range fields {
		list.Values = append(list.Values, number(f.Name, int64(f.Offset)))
	}
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: list}}}
}

// advertise returns the arguments that make the attacker publish a resource, the attributes in advertisement, and
// ring, which it stores at the start of its ring.
func advertise(t *testing.T, ring []byte, resource []*commonpb.KeyValue, advertisement ...*commonpb.KeyValue) []string {
	t.Helper()
	payload, err := proto.Marshal(&processcontextpb.ProcessContext{Resource: &resourcepb.Resource{Attributes: resource}, Attributes: advertisement})
	require.NoError(t, err)
	return []string{"publish", strconv.Itoa(wire.ProcessContextVersion), hex.EncodeToString(payload), hex.EncodeToString(ring)}
}

// codeOffset is the offset of the code in a file from [codeFile].
const codeOffset = "4096"

// codeFile writes an ELF file and returns its path. All its symbols have the same address, where a short loop
// counts down and returns.
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
	path := filepath.Join(programs.PublicDir(t), "code")
	programs.Write(t, path, b.Bytes())
	return path
}
