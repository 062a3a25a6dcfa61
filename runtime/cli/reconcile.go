package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kairos-io/provider-kubernetes/runtime/cluster"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
	"github.com/kairos-io/provider-kubernetes/runtime/status"
)

const (
	reconcileLog    = "/var/log/provider-kubernetes-reconcile.log"
	reconcileLimit  = time.Minute
	kubeletHealthz  = "http://127.0.0.1:10248/healthz"
	kubeletPatience = 2 * time.Second
)

func reconcileCommand(stdout, stderr io.Writer) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "reconcile --cluster-file FILE",
		Short: "Compare this node with its cluster: block once and report",
		Long: `Compare this node with its cluster: block once and report, in the status document
and in ` + reconcileLog + `. Nothing is changed.
Exit code 0: nothing is wrong, 1: failed, 2: the block is invalid, 7: the node
is a member whose kubelet doesn't answer.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), reconcileLimit)
			defer cancel()
			file, err := filepath.Abs(file)
			if err != nil {
				return err
			}
			return reconcile(ctx, "/", file, kubeletHealthz, stdout, stderr)
		},
	}
	c.Flags().StringVar(&file, "cluster-file", "", "the cluster: block, as YAML or JSON")
	_ = c.MarkFlagRequired("cluster-file")
	return c
}

// reconcile observes the file system at root and the kubelet at healthz, and
// reports. The error is the exit code the report asks for.
func reconcile(ctx context.Context, root, file, healthz string, stdout, stderr io.Writer) exitCode {
	begin := time.Now()
	r, err := host.OpenRoot(root)
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	defer func() { _ = r.Close() }()
	log, err := openLog(filepath.Join(root, reconcileLog), stdout)
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
	}
	defer func() { _ = log.Close() }()

	doc, secrets := observe(ctx, r, file, healthz, log)
	doc.Outcome, doc.LastAction, doc.Version = "none", "reconcile", version
	doc.Message = status.Sanitize(doc.Message, secrets...)
	doc.Budget = status.Budget{Limit: int(reconcileLimit.Seconds()), Used: int(time.Since(begin).Seconds())}
	log.line("phase=%s membership=%s reason=%s: %s", doc.Phase, doc.Membership, doc.Reason, doc.Message)
	if err := status.Write(r, doc); err != nil {
		log.line("%v", err)
		fmt.Fprintln(stderr, "error:", err)
		return max(exitOf(doc), 1)
	}
	return exitOf(doc)
}

// observe looks at the node and returns what there is to say, and the secrets
// that must not be said.
func observe(ctx context.Context, root *host.Root, file, healthz string, log *logger) (status.Document, []string) {
	doc := status.Document{Phase: status.Failed, Membership: status.MembershipUnknown}
	b, err := status.ReadFile(root, file, 4<<20)
	if err != nil {
		doc.Reason, doc.Message = status.ConfigUnreadable, fmt.Sprintf("cluster file: %v", err)
		return doc, nil
	}
	c, warnings, err := cluster.Parse(b)
	secrets := c.Secrets()
	for _, w := range warnings {
		log.line("warning: %s", status.Sanitize(w, secrets...))
	}
	if err != nil {
		// Here all of them have room.
		if invalid := (*cluster.Invalid)(nil); errors.As(err, &invalid) {
			for _, f := range invalid.Findings {
				log.line("finding: %s", status.Sanitize(f))
			}
		}
		doc.Reason, doc.Message = status.ConfigInvalid, err.Error()
		return doc, nil
	}
	doc.Role = string(c.Role)
	if doc.Membership, err = membership(root); err != nil {
		doc.Reason, doc.Message = status.MembershipUnclear, err.Error()
		return doc, secrets
	}
	if doc.Membership == status.NotMember {
		doc.Phase, doc.Reason, doc.Message = status.Reconciling, status.NotAMember, "the node has no kubelet.conf: it has joined no cluster"
		return doc, secrets
	}
	if err := healthy(ctx, healthz); err != nil {
		doc.Phase, doc.Reason, doc.Message = status.Degraded, status.KubeletUnhealthy, err.Error()
		return doc, secrets
	}
	doc.Phase, doc.Message = status.Converged, "the node is a member and its kubelet is healthy"
	return doc, secrets
}

// membership goes by the credential that kubeadm leaves on every member.
func membership(root *host.Root) (status.Membership, error) {
	const kubeconfig = "/etc/kubernetes/kubelet.conf"
	b, err := status.ReadFile(root, kubeconfig, 1<<20)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return status.NotMember, nil
	case err != nil:
		return status.MembershipUnknown, err
	case len(b) == 0:
		return status.MembershipUnknown, fmt.Errorf("%s is empty: expected the kubelet's kubeconfig", kubeconfig)
	}
	return status.Member, nil
}

// healthy asks the kubelet, past any proxy, and gives it two seconds.
func healthy(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, kubeletPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("kubelet: %s answers %s, expected 200", url, resp.Status)
	}
	return nil
}

// logger writes lines with a time to a file and without one to the caller.
type logger struct {
	file *os.File // nil when it can't be opened
	out  io.Writer
}

func openLog(name string, out io.Writer) (*logger, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o640)
	if err != nil {
		return &logger{out: out}, fmt.Errorf("reconcile log: %w", err)
	}
	return &logger{f, out}, nil
}

func (l *logger) line(format string, args ...any) {
	text := "reconcile: " + strings.TrimSpace(fmt.Sprintf(format, args...))
	fmt.Fprintln(l.out, text)
	if l.file != nil {
		fmt.Fprintln(l.file, time.Now().UTC().Format(time.RFC3339), text)
	}
}

// Close ends the log.
func (l *logger) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
