package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/spf13/cobra"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/finish"
	"github.com/kairos-io/provider-kubernetes/builder/image"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/official"
	"github.com/kairos-io/provider-kubernetes/builder/publish"
	"github.com/kairos-io/provider-kubernetes/builder/report"
	"github.com/kairos-io/provider-kubernetes/builder/rootfs"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/builder/supply"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/signing"
)

// localRepository names images that are not pushed anywhere.
const localRepository = "localhost/provider-kubernetes"

type imageFlags struct {
	minor, supply, platforms, gocmd, provider string
	out, push, tag, version, key              string
	compression                               string
	refresh, dryRun                           bool
}

func (a *app) imageCommand() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "image --minor 1.37",
		Short: "Make one verified, signed, reproducible node image",
		Long: `Make the node image of one minor: fetch every input by digest, verify it, lay it
out, prove the result, sign it by digest, and write it to an OCI layout or push
it. The last line on standard output is "image <layout path or reference>@<digest>".`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.image(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.minor, "minor", "", "Kubernetes minor, such as 1.37")
	fs.StringVar(&f.supply, "supply", auto, "auto, official or rebuilt")
	fs.StringVar(&f.platforms, "platform", hostPlatform(), "platforms, separated by commas")
	fs.StringVar(&f.gocmd, "go", "", "the go command; found in PATH by default")
	fs.StringVar(&f.provider, "provider", "bin/agent-provider-kubernetes-{arch}", "the node runtime's binary; {arch} stands for the architecture")
	fs.StringVar(&f.out, "out", "out", "folder for the OCI layout and the summary")
	fs.StringVar(&f.push, "push", "", "repository to push to instead of writing a layout")
	fs.StringVar(&f.tag, "tag", "dev", "tag; the image is published as <tag>-k8s<minor>")
	fs.StringVar(&f.version, "version", "v0.0.0-dev", "version of this project, a semantic version without build metadata")
	fs.StringVar(&f.key, "key", "", "private key to sign with; by default one that is made on first use")
	fs.StringVar(&f.compression, "compression", "gzip", "gzip or zstd; for layers that hold no compressed data")
	fs.BoolVar(&f.refresh, "refresh", false, "resolve the distribution's packages again (rebuilt supply)")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print what would be done and stop")
	return cmd
}

func (a *app) image(ctx context.Context, f imageFlags) error {
	row, err := a.row(f.minor)
	if err != nil {
		return err
	}
	compression, ok := map[string]rootfs.Compression{"gzip": rootfs.Gzip, "zstd": rootfs.Zstd}[f.compression]
	if !ok {
		return usage("--compression %s is unknown: use gzip or zstd", f.compression)
	}
	if v, err := matrix.ParseVersion(f.version); err != nil || v.Build != "" {
		return usage("--version %s: expected a semantic version without build metadata, such as v0.5.0", f.version)
	}
	var platforms []fetch.Platform
	for s := range strings.SplitSeq(f.platforms, ",") {
		p, err := platform(s)
		if err != nil {
			return err
		}
		if slices.Contains(platforms, p) {
			return usage("--platform names %s twice", p)
		}
		platforms = append(platforms, p)
	}
	tags := []string{f.tag + "-k8s" + row.Minor.String()}
	if row.Minor == a.matrix.Newest() && f.push != "" {
		tags = append(tags, f.tag, "latest")
	}
	for _, tag := range tags {
		ref := cmp.Or(f.push, localRepository) + ":" + tag
		if _, err := name.NewTag(ref, name.StrictValidation); err != nil {
			return usage("%s can't be published: %w", ref, err)
		}
	}
	chosen, reason, err := a.choose(ctx, f.supply, row, platforms[0])
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "supply %s: %s\n", chosen, reason)
	if f.dryRun {
		return a.plan(f, row, chosen, platforms, tags)
	}

	rep := a.reporter()
	st, err := a.store()
	if err != nil {
		return err
	}
	signer, err := openKey(f.key)
	if err != nil {
		return err
	}
	summary := report.Summary{Kubernetes: row.Kubernetes.String(), Supply: chosen, SupplyReason: reason, Tags: tags}
	var images []finish.Image
	for _, p := range platforms {
		made, err := a.platform(ctx, f, row, chosen, p, compression, st, rep)
		if err != nil {
			return err
		}
		images = append(images, made.Image)
		summary.Platforms = append(summary.Platforms, made.Summary)
		summary.KairosVersion, summary.Rules = made.KairosVersion, len(made.Inspection.Checks)
	}
	index, err := finish.Index(images, nil)
	if err != nil {
		return err
	}
	if _, err := st.Put(ctx, bytes.NewReader(index.Bytes), index.Descriptor); err != nil {
		return err
	}
	summary.Digest = index.Descriptor.Digest
	location, err := a.publish(ctx, f, row, st, signer, index, images, tags, rep)
	if err != nil {
		return err
	}
	summary.Image = location + "@" + index.Descriptor.Digest
	summary.Steps, summary.PeakMemory = rep.Timings(), peakMemory()
	if err := a.summarise(f, row, summary); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "image %s\n", summary.Image)
	return err
}

func (a *app) platform(ctx context.Context, f imageFlags, row matrix.Row, name string, p fetch.Platform, c rootfs.Compression, st *store.Store, rep *report.Reporter) (*image.Made, error) {
	s, err := a.openSupply(name, row, p, f.gocmd, f.refresh, rep)
	if err != nil {
		return nil, err
	}
	made, err := image.Make(ctx, image.Spec{
		Row: row, Stack: a.matrix.Stack, Epoch: a.matrix.Epoch, Platform: p, Version: f.version,
		Provider:    strings.ReplaceAll(f.provider, "{arch}", p.Architecture),
		Compression: c, Supply: s, Store: st, Report: rep,
	})
	return made, errors.Join(err, s.Close())
}

// openSupply returns a supply by its name.
func (a *app) openSupply(name string, row matrix.Row, p fetch.Platform, gocmd string, refresh bool, rep *report.Reporter) (supply.Supply, error) {
	r, err := a.openRebuilt(row, p, gocmd, refresh, rep)
	if err != nil {
		return nil, err
	}
	if name == supply.Rebuilt {
		return r, nil
	}
	r.Only = official.FromRebuilt
	return &official.Supply{Source: a.source, Row: row, Stack: a.matrix.Stack, Platform: p, Rebuilt: r, Report: rep}, nil
}

// publish signs the index by digest, writes or pushes it with its signatures,
// and verifies what came out with the signer's public key.
func (a *app) publish(ctx context.Context, f imageFlags, row matrix.Row, st *store.Store, key *signing.Key, index finish.Document, images []finish.Image, tags []string, rep *report.Reporter) (string, error) {
	repository := localRepository
	if f.push != "" {
		repository = f.push
	}
	hash, err := v1.NewHash(index.Descriptor.Digest)
	if err != nil {
		return "", err
	}
	artifacts, err := key.Sign(ctx, repository, v1.Descriptor{MediaType: types.MediaType(index.MediaType), Digest: hash, Size: index.Descriptor.Size})
	if err != nil {
		return "", err
	}
	release := publish.Release{Index: index, Images: images, Annotations: map[string]string{signing.KindAnnotation: signing.KindImageIndex}}
	for _, art := range artifacts {
		out := publish.Artifact{Tag: art.Tag, MediaType: string(art.Descriptor.MediaType), Manifest: art.Manifest, Annotations: art.Descriptor.Annotations, Blobs: map[string][]byte{}}
		for h, b := range art.Blobs {
			out.Blobs[h.String()] = b
		}
		release.Artifacts = append(release.Artifacts, out)
	}
	location := f.push
	step := rep.Step("publish")
	if f.push != "" {
		a.pushing = f.push
		err = publish.Registry{Repository: f.push}.Push(ctx, st, release, tags)
	} else {
		location = filepath.Join(f.out, "k8s-"+row.Minor.String())
		err = publish.Layout(ctx, st, location, release, tags)
	}
	if err := step.Done(err); err != nil {
		return "", err
	}
	step = rep.Step("verify our own signature")
	_, err = verifySignature(ctx, location, index.Descriptor.Digest, key.PublicKey())
	return location, step.Done(err)
}

// peakMemory is the most that this process had in memory, in bytes; programs it
// started don't count.
func peakMemory() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Maxrss << 10
}

// openKey returns the key to sign with.
func openKey(path string) (*signing.Key, error) {
	if path != "" {
		return signing.LoadKey(path, []byte(os.Getenv("COSIGN_PASSWORD")))
	}
	return signing.LoadOrCreateKey(keyFolder())
}

// keyFolder is where the key pair lies that is made on first use.
func keyFolder() string {
	if dir, err := os.UserConfigDir(); err == nil {
		return filepath.Join(dir, "provider-kubernetes")
	}
	return filepath.Join(defaultCache(), "keys")
}

// summarise prints the summary and writes it beside the image.
func (a *app) summarise(f imageFlags, row matrix.Row, s report.Summary) error {
	if err := s.Text(a.stdout); err != nil {
		return err
	}
	for ext, write := range map[string]func(io.Writer) error{".md": s.Markdown, ".json": s.JSON} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return err
		}
		if err := store.WriteFile(filepath.Join(f.out, "k8s-"+row.Minor.String()+ext), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// plan prints what image would do.
func (a *app) plan(f imageFlags, row matrix.Row, name string, platforms []fetch.Platform, tags []string) error {
	fmt.Fprintf(a.stdout, "would make Kubernetes %s for %s:\n", row.Kubernetes, f.platforms)
	var locks []string
	for _, p := range platforms {
		locks = append(locks, mustRel(a.source, lock.Path(a.source, name, row.Minor, p.String())))
	}
	for i, line := range []string{
		"read " + strings.Join(locks, " and ") + " and refuse what is stale",
		"fetch and verify by digest: " + strings.Join(references(row), " "),
		"take kubeadm, kubelet, kubectl, crictl " + a.matrix.Stack.Crictl + ", containerd " + a.matrix.Stack.Containerd + ", runc " + a.matrix.Stack.Runc + " and CNI plugins " + a.matrix.Stack.CNIPlugins + " from verified inputs, etcdctl and etcdutl " + row.EtcdVersion() + " from the etcd image",
		"compare the bundle with kubeadm's own list and write images.lock",
		"write the payload layers and put them on the base",
		"inspect the result",
		"sign it by digest and publish it as " + strings.Join(tags, ", "),
	} {
		fmt.Fprintf(a.stdout, "  %d. %s\n", i+1, line)
	}
	return nil
}

func references(row matrix.Row) []string {
	var out []string
	for _, i := range row.Images() {
		out = append(out, i.Reference)
	}
	return out
}
