// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// patience bounds each wait, except for the agent's profiles, which may take five times as long.
const patience = 2 * time.Minute

// needContainers skips the test if this machine cannot run containers.
func needContainers(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("running containers needs root")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("running containers needs runc: ", err)
	}
}

// buildQuickstart and buildRecorder build static programs as the Dockerfile does, because the
// containers contain no libraries.
func buildQuickstart(t *testing.T) string {
	t.Helper()
	return programs.Build(t, programs.Static, filepath.Join(root, "example"), "./quickstart")
}

func buildRecorder(t *testing.T) string {
	t.Helper()
	return programs.Build(t, programs.Static, filepath.Join(root, "cmd/otelctx"), ".")
}

// containerSpec returns the runtime configuration for the first container of a pod. The container has
// Docker's default seccomp profile and uses the host's network.
func containerSpec(t *testing.T, pod *corev1.PodSpec, args, environ []string) *specs.Spec {
	t.Helper()
	c := pod.Containers[0].SecurityContext
	user := c.RunAsUser
	if user == nil {
		user = pod.SecurityContext.RunAsUser
	}
	var added, counting []string
	for _, capability := range c.Capabilities.Add {
		added = append(added, "CAP_"+string(capability))
	}
	if *user == 0 {
		counting = added // Runtimes set no ambient capabilities, so only root has the added ones.
	}
	s := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Args: args, Env: environ, Cwd: "/",
			User:            specs.User{UID: uint32(*user), GID: uint32(*user)},
			Capabilities:    &specs.LinuxCapabilities{Bounding: added, Permitted: counting, Effective: counting},
			NoNewPrivileges: !*c.AllowPrivilegeEscalation,
		},
		Root: &specs.Root{Path: "rootfs", Readonly: *c.ReadOnlyRootFilesystem},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}},
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
				"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if !pod.HostPID {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}
	profile, err := seccomp.GetDefaultProfile(s)
	require.NoError(t, err)
	s.Linux.Seccomp = profile
	return s
}

// container returns a command that runs a container whose only program is the given one.
func container(t *testing.T, spec *specs.Spec, program string) *exec.Cmd {
	t.Helper()
	bundle := t.TempDir()
	rootfs := filepath.Join(bundle, "rootfs")
	for dir := bundle; dir != os.TempDir(); dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755)) // every user needs access
	}
	require.NoError(t, os.Mkdir(rootfs, 0o755))
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	programs.Write(t, filepath.Join(rootfs, filepath.Base(program)), content)
	config, err := json.Marshal(spec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600))
	name := fmt.Sprintf("otelctx-test-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(bundle))+filepath.Base(bundle))
	t.Cleanup(func() { _ = exec.Command("runc", "delete", "--force", name).Run() })
	return exec.Command("runc", "run", "--bundle", bundle, name)
}

type started struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr bytes.Buffer
	exited bool
}

func start(t *testing.T, cmd *exec.Cmd) *started {
	t.Helper()
	s := &started{t: t, cmd: cmd}
	cmd.Stderr = &s.stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if !s.exited {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return s
}

// stop shuts the process down gracefully.
func (s *started) stop() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	timeout := time.AfterFunc(patience, func() { _ = s.cmd.Process.Kill() })
	defer timeout.Stop()
	err := s.cmd.Wait()
	s.exited = true
	require.NoError(s.t, err, s.stderr.String())
}

// startCollector starts the Collector with the manifests' configuration, except that it uses free
// ports and writes its files to dir. It also returns the addresses for gRPC and HTTP.
func startCollector(t *testing.T, program, dir string) (collector *started, grpc, http string) {
	t.Helper()
	var addresses []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
		addresses = append(addresses, l.Addr().String())
	}
	config := string(read(t, "collector.yaml"))
	for from, to := range map[string]string{"0.0.0.0:4317": addresses[0], "0.0.0.0:4318": addresses[1], "/telemetry/": dir + "/"} {
		require.Contains(t, config, from)
		config = strings.ReplaceAll(config, from, to)
	}
	path := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	return start(t, exec.Command(program, "--feature-gates=service.profilesSupport", "--config="+path)), addresses[0], addresses[1]
}

// startService starts the service in a container and returns once the service accepts requests.
func startService(t *testing.T, program string, pod *corev1.PodSpec, environ ...string) *started {
	t.Helper()
	cmd := container(t, containerSpec(t, pod, []string{"/quickstart", "-serve"}, environ), program)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	service := start(t, cmd)
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan(), "the service has not started: %s", &service.stderr)
	assert.Equal(t, "pid=1", lines.Text(), "it must have its own PID namespace")
	require.True(t, lines.Scan())
	return service
}

// TestContainers checks that the recorder finds the service's spans and functions, and sends them to
// the Collector, when it has exactly the privileges of its manifest. The pods run as containers.
func TestContainers(t *testing.T) {
	testenv.NeedAll(t)
	needContainers(t)
	quickstart, otelctx := buildQuickstart(t), buildRecorder(t)
	dir, objects := t.TempDir(), manifests(t, record)
	collector, grpc, http := startCollector(t, programs.Build(t, programs.Static, "..", "./collector"), dir)
	service := startService(t, quickstart,
		&find[*appsv1.Deployment](t, objects, "quickstart").Spec.Template.Spec,
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://"+http, "OTEL_SERVICE_NAME=contained", "OTEL_RESOURCE_ATTRIBUTES=k8s.pod.name=contained-0")

	pod := &find[*appsv1.DaemonSet](t, objects, "otelctx").Spec.Template.Spec
	args := []string{"/otelctx"}
	for _, arg := range pod.Containers[0].Args {
		switch {
		case strings.HasPrefix(arg, "--otlp-endpoint="):
			arg = "--otlp-endpoint=http://" + grpc
		case strings.HasPrefix(arg, "--duration="):
			arg = "--duration=2s"
		case strings.HasPrefix(arg, "--freq="):
			arg = "--freq=499"
		}
		args = append(args, arg)
	}
	recorder := start(t, container(t, containerSpec(t, pod, args, nil), otelctx))
	profiles := filepath.Join(dir, "profiles.jsonl")
	if !assert.Eventually(t, func() bool {
		content, err := os.ReadFile(profiles)
		return err == nil && bytes.Count(content, []byte("\n")) >= 2
	}, patience, 100*time.Millisecond) {
		if strings.Contains(recorder.stderr.String(), "not permitted to sample") {
			t.Skip(recorder.stderr.String()) // Root lacks capabilities on this machine.
		}
		require.FailNow(t, "no profiles", recorder.stderr.String())
	}
	recorder.stop()
	service.stop()
	collector.stop()

	content, err := os.ReadFile(profiles)
	require.NoError(t, err)
	assert.Contains(t, string(content), `"main.digests"`, "the service's functions must have names")
	assert.Contains(t, string(content), `"contained-0"`, "profiles must have the service's resource")
	joined, err := exec.Command(programs.Build(t, programs.Static, filepath.Join(root, "example"), "./ecosystem/join"), filepath.Join(dir, "traces.jsonl"), profiles).CombinedOutput()
	require.NoError(t, err, string(joined))
	t.Logf("%s", joined)
	// The profile may also contain other processes of this host, but they do not export spans to this
	// Collector.
	assert.Regexp(t, `(?m)^contained +digests +[1-9]\d+ +\S+ +\S+ +(0\.\d*[1-9]|[1-9]\d*\.)\d*s `, string(joined))
	assert.NotRegexp(t, `(?m)^contained +\(not exported\)`, string(joined))
}

// TestContainersWithLess checks that the recorder cannot record the service if any privilege is
// missing, and that it reports what is missing. It cannot report that it does not share the host's
// PID namespace.
func TestContainersWithLess(t *testing.T) {
	needContainers(t)
	quickstart, otelctx := buildQuickstart(t), buildRecorder(t)
	objects := manifests(t, record)
	startService(t, quickstart, &find[*appsv1.Deployment](t, objects, "quickstart").Spec.Template.Spec,
		"OTEL_SERVICE_NAME=contained")
	recordWith := func(t *testing.T, change func(*corev1.PodSpec), withoutMount string) (stdout, stderr string, code int) {
		t.Helper()
		pod := find[*appsv1.DaemonSet](t, objects, "otelctx").Spec.Template.Spec.DeepCopy()
		if change != nil {
			change(pod)
		}
		spec := containerSpec(t, pod, []string{"/otelctx", "record", "--all", "--duration=1s", "--freq=499"}, nil)
		spec.Mounts = slices.DeleteFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == withoutMount })
		return programs.Run(t, container(t, spec, otelctx))
	}
	const notPermitted, noSamples = 4, 9
	stdout, stderr, code := recordWith(t, nil, "")
	if code == notPermitted {
		t.Skip(stderr) // Root lacks capabilities on this machine.
	}
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "contained")
	tests := map[string]struct {
		change  func(*corev1.PodSpec)
		mount   string // the mount to leave out
		code    int
		message string
	}{
		"not root": {
			change: func(pod *corev1.PodSpec) { *pod.Containers[0].SecurityContext.RunAsUser = 65532 },
			code:   notPermitted, message: "without CAP_BPF and CAP_PERFMON",
		},
		"not the host's processes": {
			change: func(pod *corev1.PodSpec) { pod.HostPID = false },
			code:   noSamples, message: "no process publishes",
		},
		"no sysfs": {mount: "/sys", code: 1, message: "otelctx: open /sys/"},
	}
	for _, capability := range record.capabilities {
		test := tests["no "+string(capability)]
		test.change = func(pod *corev1.PodSpec) {
			has := pod.Containers[0].SecurityContext.Capabilities
			has.Add = slices.DeleteFunc(has.Add, func(c corev1.Capability) bool { return c == capability })
		}
		test.message = "CAP_" + string(capability)
		test.code = notPermitted
		if capability == "SYS_PTRACE" { // The recorder still records processes that it may read, but none of them publishes.
			test.code = noSamples
		}
		tests["no "+string(capability)] = test
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := recordWith(t, test.change, test.mount)
			assert.Equal(t, test.code, code, stderr)
			assert.Contains(t, stderr, test.message)
			assert.NotContains(t, stdout, "contained")
		})
	}
}

// These environment variables are set by make interop WHAT=collector.
const (
	collectorKey = "OTELCTX_TEST_COLLECTOR" // the Collector built by make interop WHAT=otelcol
	unlimitedKey = "OTELCTX_TEST_UNLIMITED" // set if that Collector does not raise RLIMIT_MEMLOCK
)

// mayRaiseLimits reports whether this process has CAP_SYS_RESOURCE, which it can then give to
// containers.
func mayRaiseLimits(t *testing.T) bool {
	t.Helper()
	const sysResource = 24
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(status), "\nCapPrm:")
	var held uint64
	_, err = fmt.Sscanf(after, "%x", &held)
	require.NoError(t, err)
	return held&(1<<sysResource) != 0
}

// agentSpec returns the runtime configuration of the profiling Collector, which sends to endpoint.
// change modifies the pod first. CAP_SYS_RESOURCE is left out if this process does not have it.
func agentSpec(t *testing.T, change func(*corev1.PodSpec), endpoint string) *specs.Spec {
	t.Helper()
	objects := manifests(t, agent)
	pod := find[*appsv1.DaemonSet](t, objects, "otelctx").Spec.Template.Spec.DeepCopy()
	c := &pod.Containers[0]
	if !mayRaiseLimits(t) {
		c.SecurityContext.Capabilities.Add = slices.DeleteFunc(c.SecurityContext.Capabilities.Add, func(c corev1.Capability) bool { return c == "SYS_RESOURCE" })
	}
	if change != nil {
		change(pod)
	}
	spec := containerSpec(t, pod, append([]string{"/otelcol"}, c.Args...), []string{"OTLP_ENDPOINT=" + endpoint, "OTEL_RESOURCE_ATTRIBUTES=k8s.node.name=node-0"})
	config := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(config, "config.yaml"), read(t, "agent.yaml"), 0o600))
	for _, m := range c.VolumeMounts {
		source := config
		if v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]; v.HostPath != nil {
			source = v.HostPath.Path
		}
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: m.MountPath, Type: "bind", Source: source, Options: []string{"bind", "ro"}})
	}
	return spec
}

// agentProgram returns the path of a link to the Collector. The link has the file name that the
// program has in the image.
func agentProgram(t *testing.T) string {
	t.Helper()
	built := os.Getenv(collectorKey)
	if built == "" {
		t.Skip("only make interop WHAT=collector builds the Collector")
	}
	if tracepoints, _ := os.ReadDir("/sys/kernel/tracing"); len(tracepoints) == 0 {
		t.Skip("the eBPF profiler needs a mounted tracefs")
	}
	if !mayRaiseLimits(t) && os.Getenv(unlimitedKey) == "" {
		t.Skip("the eBPF profiler needs CAP_SYS_RESOURCE to raise RLIMIT_MEMLOCK")
	}
	path := filepath.Join(t.TempDir(), "otelcol")
	require.NoError(t, os.Symlink(built, path))
	return path
}

// TestContainersAgent checks that the profiling Collector works with exactly the privileges of its
// manifest. Its profiles must have function names, the service's resource, and links to spans that
// the service exported.
func TestContainersAgent(t *testing.T) {
	needContainers(t)
	program := agentProgram(t)
	dir := t.TempDir()
	collector, grpc, http := startCollector(t, programs.Build(t, programs.Static, "..", "./collector"), dir)
	service := startService(t, buildQuickstart(t),
		&find[*appsv1.Deployment](t, manifests(t, agent), "quickstart").Spec.Template.Spec,
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://"+http, "OTEL_SERVICE_NAME=contained", "OTEL_RESOURCE_ATTRIBUTES=k8s.pod.name=contained-0")
	recorder := start(t, container(t, agentSpec(t, nil, grpc), program))
	spans := regexp.MustCompile(`"spanId":"([0-9a-f]{16})"`)
	spansOf := func(name string) map[string]bool {
		content, _ := os.ReadFile(filepath.Join(dir, name)) // It may not exist yet.
		ids := map[string]bool{}
		for _, match := range spans.FindAllSubmatch(content, -1) {
			ids[string(match[1])] = true
		}
		return ids
	}
	var profiles []byte
	require.Eventually(t, func() bool {
		profiles, _ = os.ReadFile(filepath.Join(dir, "profiles.jsonl"))
		linked, exported := spansOf("profiles.jsonl"), spansOf("traces.jsonl")
		maps.DeleteFunc(linked, func(id string, _ bool) bool { return !exported[id] })
		return len(linked) > 0 && bytes.Contains(profiles, []byte(`"main.digests"`)) && bytes.Contains(profiles, []byte(`"contained-0"`))
	}, 5*patience, time.Second, "%s", &recorder.stderr)
	assert.Contains(t, string(profiles), `"node-0"`)
	recorder.stop()
	service.stop()
	collector.stop()
}

// TestContainersAgentWithLess checks that the Collector fails to start and reports the reason if a
// required capability is missing. It does not cover the other capabilities.
func TestContainersAgentWithLess(t *testing.T) {
	needContainers(t)
	program := agentProgram(t)
	for capability, message := range map[corev1.Capability]string{
		"BPF": "failed to load eBPF", "PERFMON": "failed to load eBPF", "SYSLOG": "unable to read kallsyms addresses",
	} {
		t.Run(string(capability), func(t *testing.T) {
			spec := agentSpec(t, func(pod *corev1.PodSpec) {
				has := pod.Containers[0].SecurityContext.Capabilities
				has.Add = slices.DeleteFunc(has.Add, func(c corev1.Capability) bool { return c == capability })
			}, "127.0.0.1:1")
			_, stderr, code := programs.Run(t, container(t, spec, program))
			assert.NotZero(t, code)
			assert.Contains(t, stderr, message)
		})
	}
}
