// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/url"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// decode decodes the documents of a manifest with the API server's decoder. Unknown and duplicate
// fields are errors.
func decode(manifest []byte) ([]metav1.Object, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var objects []metav1.Object
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		decoded, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		object, err := meta.Accessor(decoded)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}

// manifests returns the objects of all manifests that deploy the recorder r, in the order in which
// kubectl apply creates them.
func manifests(t *testing.T, r recorder) []metav1.Object {
	t.Helper()
	paths := []string{"kubernetes/0-namespaces.yaml", "kubernetes/1-collector.yaml", "kubernetes/2-quickstart.yaml", r.manifest}
	var objects []metav1.Object
	for _, path := range paths {
		decoded, err := decode(read(t, path))
		require.NoError(t, err, path)
		objects = append(objects, decoded...)
	}
	return objects
}

// find returns the object with this type and name.
func find[T metav1.Object](t *testing.T, objects []metav1.Object, name string) T {
	t.Helper()
	for _, o := range objects {
		if typed, ok := o.(T); ok && o.GetName() == name {
			return typed
		}
	}
	var none T
	require.Failf(t, "not there", "%T %s", none, name)
	return none
}

// podOf returns the selector and template of the pods that an object creates, or nil if the object
// creates no pods.
func podOf(o metav1.Object) (selector *metav1.LabelSelector, template *corev1.PodTemplateSpec) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return o.Spec.Selector, &o.Spec.Template
	case *appsv1.DaemonSet:
		return o.Spec.Selector, &o.Spec.Template
	default:
		return nil, nil
	}
}

// TestKubernetes checks that the manifests refer only to things that exist, contain the
// configurations of the other deployment files, and give the pods no more rights than they need.
func TestKubernetes(t *testing.T) {
	t.Run("record", func(t *testing.T) {
		recorder := testManifests(t, record)
		assertRecorderArgs(t, recorder.Containers[0].Args, "http://collector.otelctx-example:4317")
		assert.Empty(t, recorder.Volumes)
	})
	t.Run("agent", func(t *testing.T) {
		recorder := testManifests(t, agent)
		c := recorder.Containers[0]
		assertCollectorArgs(t, c.Args, c.VolumeMounts[0].MountPath+"/config.yaml")
		config := find[*corev1.ConfigMap](t, manifests(t, agent), recorder.Volumes[0].ConfigMap.Name)
		assert.Equal(t, string(read(t, "agent.yaml")), config.Data["config.yaml"])
		assert.Equal(t, agent.hostPath, c.VolumeMounts[1].MountPath)
		assert.Equal(t, "OTLP_ENDPOINT", c.Env[0].Name)
		assert.Equal(t, "collector.otelctx-example:4317", c.Env[0].Value)
	})
}

// testManifests checks the manifests that deploy the recorder r, apart from the differences between
// recorders, and returns the recorder's pod.
func testManifests(t *testing.T, r recorder) corev1.PodSpec {
	t.Helper()
	objects := manifests(t, r)
	namespaces := map[string]bool{}
	for _, o := range objects {
		if n, ok := o.(*corev1.Namespace); ok {
			namespaces[n.Name] = true
			continue
		}
		assert.True(t, namespaces[o.GetNamespace()], "%s: its namespace must precede it", o.GetName())
		selector, template := podOf(o)
		if template == nil {
			continue
		}
		s, err := metav1.LabelSelectorAsSelector(selector)
		require.NoError(t, err)
		assert.False(t, s.Empty(), o.GetName())
		assert.True(t, s.Matches(labels.Set(template.Labels)), "%s must select its pods", o.GetName())
		hostPath := ""
		if o.GetName() == "otelctx" {
			hostPath = r.hostPath
		}
		assertPod(t, o.GetName(), &template.Spec, hostPath)
	}

	collector := find[*appsv1.Deployment](t, objects, "collector")
	service := find[*corev1.Service](t, objects, "collector")
	assert.True(t, labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(collector.Spec.Template.Labels)))
	for _, port := range service.Spec.Ports {
		assert.True(t, slices.ContainsFunc(collector.Spec.Template.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool {
			return p.Name == port.TargetPort.StrVal && p.ContainerPort == port.Port
		}), port.Name)
	}
	assert.Equal(t, string(read(t, "collector.yaml")), find[*corev1.ConfigMap](t, objects, "collector").Data["config.yaml"])
	c := collector.Spec.Template.Spec.Containers[0]
	assertCollectorArgs(t, c.Args, c.VolumeMounts[0].MountPath+"/config.yaml")
	assertCollectorWritesTo(t, c.VolumeMounts[1].MountPath)

	recorder := find[*appsv1.DaemonSet](t, objects, "otelctx").Spec.Template.Spec
	find[*corev1.ServiceAccount](t, objects, recorder.ServiceAccountName)
	assert.Equal(t, r.capabilities, recorder.Containers[0].SecurityContext.Capabilities.Add)
	assert.True(t, recorder.HostPID)
	quickstart := find[*appsv1.Deployment](t, objects, "quickstart").Spec.Template.Spec.Containers[0]
	assertReaches(t, quickstart.Env[0].Value, service)
	assertReaches(t, "http://collector.otelctx-example:4317", service)
	return recorder
}

// assertPod fails if a pod has more rights than it needs. hostPath is the only host directory that the
// pod may mount, or "" if it may mount none.
func assertPod(t *testing.T, name string, pod *corev1.PodSpec, hostPath string) {
	t.Helper()
	assert.False(t, *pod.AutomountServiceAccountToken, name)
	assert.False(t, pod.HostNetwork || pod.HostIPC, name)
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.HostPath != nil {
			assert.Equal(t, hostPath, v.HostPath.Path, "%s: must not mount other files of the host", name)
		}
	}
	for _, c := range pod.Containers {
		assertPinned(t, c.Image)
		assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, c.Name)
		assert.False(t, *c.SecurityContext.AllowPrivilegeEscalation, c.Name)
		assert.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, c.Name)
		assert.NotZero(t, c.Resources.Requests.Cpu().MilliValue(), c.Name)
		assert.NotZero(t, c.Resources.Limits.Memory().Value(), c.Name)
		for _, m := range c.VolumeMounts {
			assert.True(t, volumes[m.Name], "%s: %s", c.Name, m.Name)
			assert.True(t, m.ReadOnly || hostPath == "", "%s: %s", c.Name, m.Name)
		}
	}
}

// assertReaches fails if endpoint is not an address and port of the Service s.
func assertReaches(t *testing.T, endpoint string, s *corev1.Service) {
	t.Helper()
	u, err := url.Parse(endpoint)
	require.NoError(t, err)
	assert.Equal(t, s.Name+"."+s.Namespace, u.Hostname())
	assert.True(t, slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return strconv.Itoa(int(p.Port)) == u.Port() }), endpoint)
}

// TestPodSecurity checks that all pods meet the restricted pod security standard, except that the
// recorder violates it for the reasons listed here. The checks are those of the API server.
func TestPodSecurity(t *testing.T) {
	reasons := []string{"host namespaces", "unrestricted capabilities", "runAsNonRoot != true", "runAsUser=0"}
	t.Run("record", func(t *testing.T) { testPodSecurity(t, record, reasons) })
	t.Run("agent", func(t *testing.T) {
		testPodSecurity(t, agent, append(reasons, "restricted volume types"))
	})
}

func testPodSecurity(t *testing.T, r recorder, reasons []string) {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	objects := manifests(t, r)
	for _, o := range objects {
		_, template := podOf(o)
		if template == nil {
			continue
		}
		enforced := psapi.Level(find[*corev1.Namespace](t, objects, o.GetNamespace()).Labels[psapi.EnforceLevelLabel])
		evaluate := func(level psapi.Level) policy.AggregateCheckResult {
			return policy.AggregateCheckResults(evaluator.EvaluatePod(
				psapi.LevelVersion{Level: level, Version: psapi.LatestVersion()}, &template.ObjectMeta, &template.Spec))
		}
		result := evaluate(enforced)
		assert.True(t, result.Allowed, "%s: %s", o.GetName(), result.ForbiddenDetail())
		if o.GetName() != "otelctx" {
			assert.Equal(t, psapi.LevelRestricted, enforced, o.GetName())
			continue
		}
		assert.ElementsMatch(t, reasons, evaluate(psapi.LevelRestricted).ForbiddenReasons)
	}
}
