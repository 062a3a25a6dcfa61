package inspect

import (
	"context"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/bundle"
	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

const lockPath = overlay.BundleDir + "/" + bundle.LockName

// checkBundle compares four things that must agree: what this Kubernetes
// version consists of, what the image's kubeadm asks for, what images.lock
// says, and what the archives are.
func checkBundle(ctx context.Context, s *subject) error {
	want := map[string]string{} // name by reference
	for _, i := range s.Row.Images() {
		want[i.Reference] = i.Name
	}
	if err := s.compareKubeadm(ctx, want); err != nil {
		return err
	}
	b, ok := s.small[lockPath]
	if !ok {
		return nil // the rule about paths
	}
	list, err := bundle.ParseLock(b)
	if err != nil {
		all := []error{err}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			all = joined.Unwrap()
		}
		for _, err := range all {
			s.find(lockPath, err.Error(), "a list of images that the node accepts", rebuild)
		}
		return nil
	}
	for _, f := range []struct{ name, got, want string }{
		{"kubernetesVersion", list.KubernetesVersion, s.Row.Kubernetes.String()},
		{"platform", list.Platform, s.Platform.String()},
	} {
		if f.got != f.want {
			s.find(lockPath, fmt.Sprintf("%s: %q", f.name, f.got), f.want, rebuild)
		}
	}

	archives := map[string]bundle.Entry{}
	listed := map[string]bool{}
	for _, i := range list.Images {
		archives[i.Archive], listed[i.Reference] = i, true
		name, ok := want[i.Reference]
		switch {
		case !ok:
			s.find(lockPath, "lists "+i.Reference, "only what kubeadm asks for", rebuild)
		case !i.Verified && slices.Contains([]string{"etcd", "pause", "coredns"}, name):
			s.find(lockPath, i.Reference+" is not verified", "a verified image: there is no exception for "+name, "verify the image at its source")
		case i.Verified && (i.Verification.By == "" || i.Verification.By == lock.ByException):
			s.find(lockPath, fmt.Sprintf("%s was verified by %q", i.Reference, i.Verification.By), "what vouched for it", rebuild)
		}
	}
	for reference := range want {
		if !listed[reference] {
			s.find(lockPath, "does not list "+reference, "every image that kubeadm asks for", rebuild)
		}
	}
	return s.checkArchives(ctx, archives)
}

// compareKubeadm asks the image's kubeadm, which needs no network for that.
func (s *subject) compareKubeadm(ctx context.Context, want map[string]string) error {
	e, ok := s.lstat(kubeadm)
	if !ok || e.Type != layerfs.Regular || e.Mode&0o111 == 0 {
		return nil // the rule about paths
	}
	if !s.runs() {
		s.note("kubeadm was not asked for its images: it is for %s", s.Platform)
		return nil
	}
	out, err := s.output(ctx, filepath.Join(s.dir, kubeadm), "config", "images", "list", "--kubernetes-version", s.Row.Kubernetes.String())
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		s.find(kubeadm, s.message(out, err), "the list of its images", "run kubeadm config images list and see what it objects to")
		return nil
	}
	listed := strings.Fields(string(out))
	slices.Sort(listed)
	for _, ref := range listed {
		if _, ok := want[ref]; !ok {
			s.find(kubeadm, "asks for "+ref, "only the matrix row's images", "correct the row, then rebuild the image")
		}
	}
	for ref := range want {
		if !slices.Contains(listed, ref) {
			s.find(kubeadm, "does not ask for "+ref, "the matrix row's images", "correct the row, then rebuild the image")
		}
	}
	return nil
}

// checkArchives reads every archive in one pass over the layers.
func (s *subject) checkArchives(ctx context.Context, locked map[string]bundle.Entry) error {
	var names []string
	for _, e := range s.entries {
		if path.Dir(e.Path) != overlay.BundleDir || e.Path == lockPath {
			continue
		}
		i, ok := locked[path.Base(e.Path)]
		switch {
		case !ok:
			s.find(e.Path, "not listed in images.lock", "nothing but the lock and its archives", "remove it, or rebuild the image")
		case e.Type != layerfs.Regular: // the rule about paths
		case e.Size != i.Size:
			s.find(e.Path, fmt.Sprintf("%d bytes", e.Size), fmt.Sprintf("%d bytes", i.Size), rebuild)
		default:
			names = append(names, e.Path)
		}
	}
	for name := range locked {
		if _, ok := s.lstat(overlay.BundleDir + "/" + name); !ok {
			s.find(overlay.BundleDir+"/"+name, "missing", "the archive that images.lock lists", rebuild)
		}
	}
	return s.FS.CopyAll(ctx, names, func(e layerfs.Entry) (io.WriteCloser, error) {
		pr, pw := io.Pipe()
		w := &archiveWriter{PipeWriter: pw, done: make(chan []problem, 1)}
		go func() { w.done <- readArchive(pr, locked[path.Base(e.Path)], s.Platform) }()
		w.report = func(problems []problem) {
			for _, p := range problems {
				s.find(e.Path, p.found, p.want, rebuild)
			}
		}
		return w, nil
	})
}

// archiveWriter hands what is written to readArchive and reports at the end.
type archiveWriter struct {
	*io.PipeWriter
	done   chan []problem
	report func([]problem)
}

func (w *archiveWriter) Close() error {
	err := w.PipeWriter.Close()
	w.report(<-w.done)
	return err
}
