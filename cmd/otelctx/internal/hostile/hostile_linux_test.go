// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package hostile

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/ticks"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

// Roles of children.
const (
	roleStalling = "stalling"
	// roleDenied is a busy service under a seccomp filter that denies MFD_NOEXEC_SEAL and the naming of mappings.
	roleDenied = "denied"
)

func TestMain(m *testing.M) {
	childproc.MainAlone(m, map[string]func(*childproc.Parent){
		busyservice.Role: busyservice.Run,
		roleStalling: func(parent *childproc.Parent) {
			_, _, err := childproc.Stall(wire.ProcessContextName, os.Getpagesize())
			parent.Must(err)
			parent.Send("stalling")
			parent.Receive()
		},
		roleDenied: func(parent *childproc.Parent) {
			parent.Must(childproc.Deny(childproc.DeniedNoexecSeal, childproc.NoNaming))
			busyservice.Run(parent)
		},
	})
}

// stolen is the secret formatted as a trace id.
var stolen = strings.Repeat("53", 16)

// requireNoSecret fails if the recording contains the secret or a stack of the program that holds it.
func requireNoSecret(t *testing.T, d *document, profile *pprof.Profile) {
	t.Helper()
	for _, s := range d.Spans {
		require.NotEqual(t, stolen, s.TraceID)
	}
	for _, s := range profile.Sample {
		for _, l := range s.Location {
			for _, line := range l.Line {
				require.NotEqual(t, "secret", line.Function.Name, "a stack of another program than is recorded, as one of %v", s.Label["service.name"])
			}
		}
	}
}

// TestSetuidExec checks that otelctx, installed with its documented capabilities, does not disclose a privileged
// program to an ordinary user. The user records a program of their own, which then executes the privileged one.
func TestSetuidExec(t *testing.T) {
	otelctx, attacker := installedCommand(t), attacker(t)
	victim := programs.Public(t, attacker, "victim")
	require.NoError(t, os.Chmod(victim, os.ModeSetuid|0o755))

	p := nobody.start(t, "published", attacker, publish(t, attacker, text("service.name", "attacker"))...)
	r := nobody.record(t, otelctx, strconv.Itoa(p.PID())).recorded(p.PID())
	busyservice.AwaitUse(t, p, 300*time.Millisecond)
	require.Equal(t, "secret", p.Ask("%s", victim))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	require.NoError(t, err)
	require.Contains(t, string(status), "Uid:\t65534\t0\t0\t0\n", "the program is privileged")
	busyservice.AwaitUse(t, p, time.Second/2)
	d, profile := r.end()
	assert.Positive(t, d.Samples, "before")
	requireNoSecret(t, d, profile)
}

// TestKernelAddresses checks that an ordinary user who may not read kernel addresses gets none in recorded kernel
// stacks.
func TestKernelAddresses(t *testing.T) {
	otelctx := installedCommand(t, unix.CAP_SYS_PTRACE, unix.CAP_SYSLOG)
	out, err := nobody.command("head", "-1", "/proc/kallsyms").Output()
	require.NoError(t, err)
	if !strings.HasPrefix(string(out), "0000000000000000 ") {
		t.Skip("the kernel shows its addresses to everybody (kernel.kptr_restrict)")
	}
	p := nobody.start(t, "frames", attacker(t), "frames")
	r := nobody.record(t, otelctx, "--kernel", strconv.Itoa(p.PID())).recorded(p.PID())
	busyservice.AwaitUse(t, p, time.Second/2)
	d, profile := r.end()
	assert.Positive(t, d.Samples)
	for _, l := range profile.Location {
		require.Less(t, l.Address, uint64(0xffff_8000_0000_0000), "an address of the kernel's")
	}

	// The file has CAP_SYS_PTRACE, but the user must still not be able to read other users' processes.
	service := startService(t, self)
	message, err := nobody.command(otelctx, "record", "--duration=1s", strconv.Itoa(service.PID())).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(message), "not permitted")
}

// TestExec checks that the memory and stacks of a program are not attributed to the service that ran in the same
// process before.
func TestExec(t *testing.T) {
	otelctx, attacker := recordingCommand(t), attacker(t)
	r := self.record(t, otelctx, "--all")
	recorded := 0
	for range testenv.Rounds(1, 10) {
		p := self.start(t, "published", attacker, publish(t, attacker, text("service.name", "before"))...)
		r.recorded(p.PID())
		busyservice.AwaitUse(t, p, 300*time.Millisecond)
		require.Equal(t, "secret", p.Ask("%s", attacker))
		busyservice.AwaitUse(t, p, 500*time.Millisecond)
		recorded = p.PID()
	}
	d, profile := r.end()
	assert.Positive(t, d.samples(recorded))
	requireNoSecret(t, d, profile)
}

// TestReusedPID checks that the memory and stacks of a process are not attributed to an earlier service that had
// the same process id.
func TestReusedPID(t *testing.T) {
	needRoot(t)
	otelctx, attacker := recordingCommand(t), attacker(t)
	r := self.record(t, otelctx, "--all")
	reused := 0
	for tries := 0; tries < 20 && reused < testenv.Rounds(1, 5); tries++ {
		p := self.start(t, "published", attacker, publish(t, attacker, text("service.name", "before"))...)
		pid := p.PID()
		r.recorded(pid)
		busyservice.AwaitUse(t, p, 100*time.Millisecond)
		p.Kill()
		require.NoError(t, os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0))
		next := self.start(t, "secret", attacker, "secret")
		if next.PID() == pid {
			reused++
			busyservice.AwaitUse(t, next, 500*time.Millisecond)
		}
		next.Kill()
	}
	if reused == 0 {
		t.Skip("no process could be given the id of another one")
	}
	d, profile := r.end()
	assert.Positive(t, d.Samples)
	requireNoSecret(t, d, profile)
}

// attack is an attack that runs beside a recorded service.
type attack struct {
	name string
	// said is the message that otelctx must print about the attack, or "".
	said string
	// begin starts the attack as the user u.
	begin func(t *testing.T, u user, attacker string)
}

// publishing starts an attacker that publishes a resource, so that it is recorded as well.
func (u user) publishing(t *testing.T, want, attacker string, args ...string) {
	t.Helper()
	u.start(t, want, attacker, append(publish(t, attacker, text("service.name", "hostile")), args...)...)
}

var attacks = []attack{
	{"invalid attributes", "attributes were left out", func(t *testing.T, u user, attacker string) {
		index := &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValueStrindex{StringValueStrindex: 1 << 30}}
		for _, attributes := range [][]*commonpb.KeyValue{
			{text("service.name", "hostile"), text("", "no key")},
			{{Key: "value", Value: index}},
			{{Key: "key", KeyStrindex: 3, Value: &commonpb.AnyValue{}}},
		} {
			u.start(t, "published", attacker, publish(t, attacker, attributes...)...)
		}
		for _, name := range []string{"x\xff", "x\xfe", "x\x1b[31m"} {
			u.publishing(t, "published", programs.Public(t, attacker, name))
		}
	}},
	{"60,000 mappings", "", func(t *testing.T, u user, attacker string) {
		u.publishing(t, "mapped", attacker, "map", codeFile(t, 1), "60000", codeOffset)
	}},
	{"thousands of mappings of a million symbols", "", func(t *testing.T, u user, attacker string) {
		code := codeFile(t, 1<<20)
		for range testenv.Rounds(1, 4) {
			u.publishing(t, "mapped", attacker, "map", programs.Public(t, code, "code"), "1000", codeOffset)
		}
	}},
	{"random frames", "", func(t *testing.T, u user, attacker string) {
		for range testenv.Rounds(2, 8) {
			u.publishing(t, "frames", attacker, "frames")
		}
	}},
	{"attributes that are new all the time", "", func(t *testing.T, u user, _ string) {
		startBusyService(t, u, busyservice.Records, busyservice.VariedLong, busyservice.VariedMany)
	}},
	{"stalling readers", "reading timed out", func(t *testing.T, u user, _ string) {
		if u == nobody {
			t.Skip("the stalling process has CAP_SYS_PTRACE, so this user may not read it")
		}
		stall(t)
	}},
}

// stall starts processes that block anyone who reads them, and returns their ids.
func stall(t *testing.T) (pids []int) {
	t.Helper()
	needRoot(t)
	for range 17 {
		c := childproc.Start(t, roleStalling, nil)
		c.Expect("stalling")
		pids = append(pids, c.PID())
	}
	return pids
}

// TestBeside checks that no attacker prevents a service from being recorded: no samples are lost, and the profile
// is readable.
func TestBeside(t *testing.T) {
	otelctx, attacker := recordingCommand(t), attacker(t)
	t.Run("all at once", func(t *testing.T) {
		var said []string
		for _, a := range attacks {
			a.begin(t, self, attacker)
			said = append(said, a.said)
		}
		self.requireRecordedBeside(t, otelctx, said...)
	})
	for _, u := range []user{self, nobody} {
		for _, a := range attacks {
			t.Run(u.String()+", "+a.name, func(t *testing.T) {
				testenv.NeedAll(t)
				otelctx := otelctx
				if u == nobody {
					otelctx = installedCommand(t)
				}
				a.begin(t, u, attacker)
				u.requireRecordedBeside(t, otelctx, a.said)
			})
		}
	}
}

// requireRecordedBeside records a service together with attackers. The recorder must print said, and use less CPU
// time than the recorded processes.
func (u user) requireRecordedBeside(t *testing.T, otelctx string, said ...string) {
	t.Helper()
	r := u.record(t, otelctx, "--all")
	service := startService(t, u)
	r.awaitNames(service)
	// Starting up and reading a million symbols may take the recorder half a second of CPU time if system calls are
	// slow. The recorded processes therefore run for a while before their CPU time is compared with the recorder's.
	// With many attackers, the wait is shorter.
	timer := ticks.Start(t, service.PID(), frequency)
	begun := r.recordedUse()
	busyservice.AwaitUse(t, service, serviceUse*11/10)
	for limit := 4 * serviceUse; limit > 0 && r.recordedUse() < begun+2*time.Second; limit -= serviceUse / 10 {
		busyservice.AwaitUse(t, service, serviceUse/10)
	}
	d := r.requireSamples(service, timer)
	used := r.cmd.ProcessState.UserTime() + r.cmd.ProcessState.SystemTime()
	t.Logf("%v of the processor, %d MB, %d samples; said: %s", used, r.memory.Load()>>20, d.Samples, r.stderr.String())
	assert.Less(t, used, time.Duration(d.Samples)*time.Second/frequency)
	for _, message := range said {
		assert.Contains(t, r.stderr.String(), message)
	}
}

// jit starts a program that generates code in the given number of pages and runs it. perfMap is the content
// of the program's perf map.
func (u user) jit(t *testing.T, attacker string, pages int, perfMap string) {
	t.Helper()
	c := childproc.Run(t, u.command(attacker, append(publish(t, attacker, text("service.name", "hostile")), "jit", strconv.Itoa(pages))...))
	c.Receive()
	path := fmt.Sprintf("/tmp/perf-%d.map", c.PID())
	t.Cleanup(func() { _ = os.Remove(path) })
	require.NoError(t, os.WriteFile(path, []byte(perfMap), 0o600))
	if u == nobody {
		require.NoError(t, os.Chown(path, childproc.Nobody, childproc.Nobody))
	}
	require.Equal(t, "running", c.Ask("run"))
}

// TestNamesBesideOthers checks that processes of another user whose symbolization is expensive do not harm a
// service: none of its samples is lost, and more than 99 % of them are symbolized.
func TestNamesBesideOthers(t *testing.T) {
	needRoot(t)
	otelctx, attacker := recordingCommand(t), attacker(t)
	service := startService(t, self)
	for name, perfMap := range map[string]string{
		"empty lines": strings.Repeat("\n", 34<<20),
		"everything":  strings.Repeat("0 ffffffffffffffff x\n", 34<<20/21),
	} {
		t.Run(name, func(t *testing.T) {
			if name != "empty lines" {
				testenv.NeedAll(t)
			}
			for range 3 {
				nobody.jit(t, attacker, 1000, perfMap)
			}
			r := self.recordTo(t, "p.otlp", otelctx, "--all")
			r.awaitNames(service)
			busyservice.AwaitUse(t, service, time.Second)
			d := r.interrupt()
			content, err := os.ReadFile(r.file)
			require.NoError(t, err)
			samples, named := samplesOf(t, content, service.PID())
			t.Logf("%d samples, %d with names; said: %s", samples, named, r.stderr.String())
			assert.Zero(t, d.Lost)
			assert.Positive(t, samples)
			assert.Equal(t, d.samples(service.PID()), samples, "the file has the samples that were taken")
			assert.Greater(t, float64(named), 0.99*float64(samples))
		})
	}
}

// samplesOf returns the number of samples that an OTLP profile has of a process, and how many of them have a
// symbolized leaf.
func samplesOf(t *testing.T, content []byte, pid int) (samples, named uint64) {
	t.Helper()
	data := &profilespb.ProfilesData{}
	require.NoError(t, proto.Unmarshal(content, data))
	d := data.GetDictionary()
	for _, r := range data.GetResourceProfiles() {
		if !slices.ContainsFunc(r.GetResource().GetAttributes(), func(kv *commonpb.KeyValue) bool {
			return kv.GetKey() == "process.pid" && kv.GetValue().GetIntValue() == int64(pid)
		}) {
			continue
		}
		for _, s := range r.GetScopeProfiles()[0].GetProfiles()[0].GetSamples() {
			leaf := d.GetLocationTable()[d.GetStackTable()[s.GetStackIndex()].GetLocationIndices()[0]]
			taken := uint64(len(s.GetTimestampsUnixNano()))
			samples += taken
			if len(leaf.GetLines()) > 0 {
				named += taken
			}
		}
	}
	return samples, named
}

// TestStalled checks that processes that block their readers do not keep otelctx from listing and recording a
// service, by CPU time and by wall-clock time, and that verify times out on such a process. The commands run
// concurrently because each waits for a timeout.
func TestStalled(t *testing.T) {
	otelctx := recordingCommand(t)
	pids := stall(t)
	service := startService(t, self)
	begin := func(args ...string) *recorder {
		r := &recorder{t: t, cmd: self.command(otelctx, args...)}
		r.begin()
		hung := time.AfterFunc(testenv.Patience, func() { _ = r.cmd.Process.Kill() })
		t.Cleanup(func() { hung.Stop() })
		return r
	}
	list := begin("list", "--json")
	verify := begin("verify", "-d", "100ms", strconv.Itoa(pids[0]))
	snapshots := begin("record", "--wall", "--all", "--duration=2s", "--json")
	r := self.record(t, otelctx, "--all").recorded(service.PID())
	busyservice.AwaitUse(t, service, 300*time.Millisecond)
	service.Stop() // It need not run while the commands wait.
	defer service.Continue()
	require.Eventually(t, func() bool {
		return strings.Count(r.stderr.String(), "reading timed out") == len(pids)
	}, testenv.Patience, 10*time.Millisecond, "%s", &r.stderr)
	d, _ := r.end()
	assert.Positive(t, d.samples(service.PID()))
	for _, pid := range pids {
		assert.Equal(t, 1, strings.Count(r.stderr.String(), fmt.Sprintf("pid %d (", pid)), r.stderr.String())
	}

	_ = list.cmd.Wait() // errors about the other processes are expected
	assert.Contains(t, list.stdout.String(), fmt.Sprintf(`"pid": %d,`, service.PID()), &list.stderr)

	require.Error(t, verify.cmd.Wait())
	assert.Contains(t, verify.stderr.String(), "timed out")

	require.NoError(t, snapshots.cmd.Wait(), &snapshots.stderr)
	var wall struct {
		Snapshots int
		Names     []any `json:"span_names"`
	}
	require.NoError(t, json.Unmarshal(snapshots.stdout.Bytes(), &wall))
	assert.NotEmpty(t, wall.Names)
	assert.Greater(t, wall.Snapshots, 20) // of about 40
}

// TestPlantedOutput checks that record does not write to a file that another user has planted at the output path in
// a world-writable directory.
func TestPlantedOutput(t *testing.T) {
	needRoot(t)
	otelctx, service := recordingCommand(t), startService(t, self)
	dir, victim := programs.PublicDir(t), filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.Chmod(dir, os.ModeSticky|0o777))
	require.NoError(t, os.WriteFile(victim, []byte("before"), 0o600))
	path := filepath.Join(dir, "p.pb.gz")
	record := func(duration string) *exec.Cmd {
		return self.command("sh", "-c", `umask 0; exec "$@"`, "sh", otelctx, "record", "--kernel", "--duration="+duration, "-o", path, strconv.Itoa(service.PID()))
	}
	for name, plant := range map[string][]string{
		"link":          {"ln", "-s", victim, path},
		"dangling link": {"ln", "-s", filepath.Join(dir, "nothing"), path},
		"file":          {"touch", path},
		"pipe":          {"mkfifo", path},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, nobody.command(plant[0], plant[1:]...).Run())
			// A FIFO needs a reader, or opening it for writing would block.
			if f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
				defer func() { _ = f.Close() }()
			}
			said, err := record("100ms").CombinedOutput()
			assert.Error(t, err)
			assert.Contains(t, string(said), "user 65534 created it in a world-writable directory")
			content, err := os.ReadFile(victim)
			require.NoError(t, err)
			assert.Equal(t, "before", string(content))
			require.NoError(t, os.Remove(path))
			assert.NoFileExists(t, filepath.Join(dir, "nothing"))
		})
	}
	r := &recorder{t: t, cmd: record("0")}
	r.begin()
	r.recorded(service.PID())
	busyservice.AwaitUse(t, service, 100*time.Millisecond)
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, r.cmd.Wait(), &r.stderr)
	info, err := os.Lstat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode(), "profiles are private to their owner")
}

// TestFilesAreNotOpened checks that the recorder does not open a FIFO that has replaced a mapped file.
func TestFilesAreNotOpened(t *testing.T) {
	otelctx := installedCommand(t)
	code := codeFile(t, 1)
	p := nobody.start(t, "mapped", attacker(t), "map", code, "1", codeOffset)
	require.NoError(t, os.Remove(code))
	require.NoError(t, unix.Mkfifo(code, 0o666))
	require.NoError(t, os.Chmod(code, 0o666))
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(t, err)
	defer func() { _ = unix.Close(watch) }()
	_, err = unix.InotifyAddWatch(watch, code, unix.IN_OPEN)
	require.NoError(t, err)
	r := nobody.record(t, otelctx, strconv.Itoa(p.PID())).recorded(p.PID())
	busyservice.AwaitUse(t, p, time.Second/2)
	d, _ := r.end()
	assert.Positive(t, d.Samples)
	_, err = unix.Read(watch, make([]byte, 4096))
	require.ErrorIs(t, err, unix.EAGAIN, "the pipe was opened")
}

// TestStalledFile checks that recording ends, and other processes are symbolized, even if opening a mapped file
// blocks forever.
func TestStalledFile(t *testing.T) {
	needRoot(t)
	otelctx := recordingCommand(t)
	code := codeFile(t, 1)
	p := self.start(t, "mapped", attacker(t), "map", code, "1", codeOffset)
	service := startService(t, self)
	// A process that opens the file blocks until this process lets it continue.
	fan, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err != nil {
		t.Skipf("files that do not answer take fanotify and CAP_SYS_ADMIN: %v", err)
	}
	held := os.NewFile(uintptr(fan), "fanotify")
	defer func() { _ = held.Close() }()
	if err := unix.FanotifyMark(fan, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, code); err != nil {
		t.Skipf("files that do not answer take CONFIG_FANOTIFY_ACCESS_PERMISSIONS: %v", err)
	}
	r := self.record(t, otelctx, strconv.Itoa(p.PID())).recorded(p.PID())
	busyservice.AwaitUse(t, p, time.Second/2)
	_, err = held.Read(make([]byte, 4096))
	require.NoError(t, err, "it is being opened")
	d, _ := r.end()
	assert.Positive(t, d.Samples)

	// Other processes must be symbolized.
	self.record(t, otelctx, "--all").requireRecorded(service)
}

// TestCrowd checks that a service is recorded even if it starts after more idle publishers than can be recorded.
func TestCrowd(t *testing.T) {
	testenv.NeedAll(t)
	const most = 4095
	otelctx, attacker := recordingCommand(t), attacker(t)
	crowd := func(processes int) { self.publishing(t, "crowded", attacker, "crowd", strconv.Itoa(processes)) }
	crowd(most)
	r := self.record(t, otelctx, "--all")
	require.Eventually(t, func() bool {
		n := 0
		for range r.exits {
			n++
		}
		return n >= most
	}, testenv.Patience, 100*time.Millisecond, "all places are taken")
	crowd(most / 8) // These are recorded only when a recorded process ends.
	r.requireRecorded(startService(t, self))
}

// TestIdlePublishers checks that a busy service is recorded while another user runs more publishers than otelctx can
// record.
func TestIdlePublishers(t *testing.T) {
	testenv.NeedAll(t)
	needRoot(t)
	otelctx, attacker := recordingCommand(t), attacker(t)
	service := startService(t, self)
	nobody.publishing(t, "crowded", attacker, "crowd", "4200")
	r := self.record(t, otelctx, "--all")
	r.awaitNames(service)
	timer := ticks.Start(t, service.PID(), frequency)
	busyservice.AwaitUse(t, service, 4*serviceUse) // All publishers are found meanwhile.
	r.requireSamples(service, timer)
}

// TestDenied checks that a service is recorded even if it may neither use MFD_NOEXEC_SEAL nor name mappings.
func TestDenied(t *testing.T) {
	otelctx := recordingCommand(t)
	c := childproc.Start(t, roleDenied, nil)
	require.Equal(t, "burning", c.Ask("%s", busyservice.Words(busyservice.Records, busyservice.ThreadSlots)))
	self.record(t, otelctx, "--all").requireRecorded(c)
}

// TestForeignCapacity checks that otelctx reads a ring whose capacity is not a power of two, which the format
// allows.
func TestForeignCapacity(t *testing.T) {
	const slots = 1000
	otelctx, attacker := recordingCommand(t), attacker(t)
	args := append(publishRing(t, attacker, slots, text("service.name", "foreign")), "slot", strconv.Itoa(slots))
	p := self.start(t, "shown", attacker, args...)
	r := self.record(t, otelctx, strconv.Itoa(p.PID())).recorded(p.PID())
	busyservice.AwaitUse(t, p, time.Second/2)
	d, _ := r.end()
	require.Len(t, d.Spans, 1)
	assert.Equal(t, strings.Repeat("46", 16), d.Spans[0].TraceID)
	assert.Equal(t, d.samples(p.PID()), d.Spans[0].Samples)
}
