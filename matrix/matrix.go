// Package matrix is the one place where a version is written. It holds the
// supported window, one row per Kubernetes minor with what that minor's kubeadm
// lists, and the stack that all minors share; and it answers, as pure
// functions, which versions exist for us and which upgrade steps are allowed.
// The builder and the node runtime both decide by it.
package matrix

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

//go:embed matrix.yaml
var embedded []byte

// Registry is where kubeadm looks its images up by default.
const Registry = "registry.k8s.io"

// Row is what one minor consists of. Etcd, CoreDNS and Pause are image tags
// exactly as that minor's kubeadm lists them.
type Row struct {
	Minor      Minor   `json:"minor"`
	Kubernetes Version `json:"kubernetes"`
	Etcd       string  `json:"etcd"`
	CoreDNS    string  `json:"coredns"`
	Pause      string  `json:"pause"`
}

// Stack is what every minor's image shares: versions without a leading v.
type Stack struct {
	Containerd string `yaml:"containerd" json:"containerd"`
	Runc       string `yaml:"runc" json:"runc"`
	CNIPlugins string `yaml:"cni-plugins" json:"cni-plugins"`
	Crictl     string `yaml:"crictl" json:"crictl"`
}

// Matrix is the parsed matrix.yaml: Window oldest first, Rows in the same order.
type Matrix struct {
	Window []Minor
	Rows   []Row
	Stack  Stack
	Epoch  time.Time // of every file that is laid into an image
}

// Load returns the matrix this program was built with.
func Load() (Matrix, error) { return Parse(embedded) }

// Parse reads a matrix document. All findings are reported together.
func Parse(b []byte) (Matrix, error) {
	var doc struct {
		Window []string `yaml:"window"`
		Rows   []struct {
			Minor, Kubernetes, Etcd, Coredns, Pause string
		} `yaml:"rows"`
		Stack Stack  `yaml:"stack"`
		Epoch string `yaml:"epoch"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&doc); err != nil {
		return Matrix{}, fmt.Errorf("matrix: %w", err)
	}
	var errs []error
	find := func(format string, a ...any) { errs = append(errs, fmt.Errorf("matrix: "+format, a...)) }

	m := Matrix{Stack: doc.Stack}
	epoch, err := time.Parse(time.RFC3339, doc.Epoch)
	if err != nil || epoch.Unix() <= 0 {
		find("epoch is %q: expected a time such as 2026-01-31T00:00:00Z", doc.Epoch)
	}
	m.Epoch = epoch
	for _, s := range doc.Window {
		minor, err := ParseMinor(s)
		if err != nil {
			find("window: %w", err)
			continue
		}
		if n := len(m.Window); n > 0 && m.Window[n-1].Next() != minor {
			find("window: %s follows %s: expected consecutive minors, oldest first", minor, m.Window[n-1])
		}
		m.Window = append(m.Window, minor)
	}
	if len(m.Window) == 0 {
		find("window is empty")
	}
	for _, r := range doc.Rows {
		minor, err := ParseMinor(r.Minor)
		if err != nil {
			find("rows: %w", err)
			continue
		}
		v, err := ParseVersion(r.Kubernetes)
		if err != nil {
			find("row %s: kubernetes: %w", minor, err)
		} else if v.MinorOf() != minor || v.Pre != "" || v.Build != "" {
			find("row %s: kubernetes is %s: expected a release of that minor", minor, v)
		}
		for name, tag := range map[string]string{"etcd": r.Etcd, "coredns": r.Coredns, "pause": r.Pause} {
			if tag == "" || strings.Trim(tag, "0123456789.v-") != "" {
				find("row %s: %s is %q: expected an image tag as kubeadm lists it", minor, name, tag)
			}
		}
		if !slices.Contains(m.Window, minor) {
			find("row %s is outside the window", minor)
		}
		if _, dup := m.Row(minor); dup {
			find("row %s is there twice", minor)
		}
		m.Rows = append(m.Rows, Row{minor, v, r.Etcd, r.Coredns, r.Pause})
	}
	for _, minor := range m.Window {
		if _, ok := m.Row(minor); !ok {
			find("minor %s of the window has no row", minor)
		}
	}
	slices.SortFunc(m.Rows, func(a, b Row) int { return a.Minor.Compare(b.Minor) })
	for name, v := range map[string]string{"containerd": m.Stack.Containerd, "runc": m.Stack.Runc, "cni-plugins": m.Stack.CNIPlugins, "crictl": m.Stack.Crictl} {
		if _, err := ParseVersion(v); err != nil {
			find("stack: %s: %w", name, err)
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return m, errors.Join(errs...)
}

// Row returns the row of a minor.
func (m Matrix) Row(minor Minor) (Row, bool) {
	for _, r := range m.Rows {
		if r.Minor == minor {
			return r, true
		}
	}
	return Row{}, false
}

// InWindow tells whether an image is built for this minor.
func (m Matrix) InWindow(minor Minor) bool { return slices.Contains(m.Window, minor) }

// Newest returns the newest minor of the window.
func (m Matrix) Newest() Minor { return m.Window[len(m.Window)-1] }

// EtcdVersion returns the etcd version that the row's image tag stands for: the
// part after the dash is the image's revision, not a pre-release.
func (r Row) EtcdVersion() string {
	v, _, _ := strings.Cut(strings.TrimPrefix(r.Etcd, "v"), "-")
	return v
}

// Image is one image of a row: Name is short and unique ("etcd"), Reference is
// what kubeadm looks up ("registry.k8s.io/etcd:3.7.0-0").
type Image struct {
	Name, Reference string
}

// Images returns the images that the row's kubeadm asks for, in its own order
// (k8s.io/kubernetes cmd/kubeadm/app/images: control plane, proxy, DNS, pause, etcd).
func (r Row) Images() []Image {
	v := r.Kubernetes.String()
	return []Image{
		{"kube-apiserver", Registry + "/kube-apiserver:" + v},
		{"kube-controller-manager", Registry + "/kube-controller-manager:" + v},
		{"kube-scheduler", Registry + "/kube-scheduler:" + v},
		{"kube-proxy", Registry + "/kube-proxy:" + v},
		{"coredns", Registry + "/coredns/coredns:" + r.CoreDNS},
		{"pause", Registry + "/pause:" + r.Pause},
		{"etcd", Registry + "/etcd:" + r.Etcd},
	}
}

// MarshalText makes a version a plain string in JSON and YAML.
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// MarshalText makes a minor a plain string in JSON and YAML.
func (m Minor) MarshalText() ([]byte, error) { return []byte(m.String()), nil }
