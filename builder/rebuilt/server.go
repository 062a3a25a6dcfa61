package rebuilt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/signing"
)

// server is a registry on a loopback port whose blobs are those of an OCI
// layout. It lives as long as the build.
type server struct {
	url string
	up  *store.Store
	srv *http.Server
}

func serve(up *store.Store) (*server, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve the rebuilt images: %w", err)
	}
	s := &server{url: "http://" + l.Addr().String(), up: up}
	s.srv = &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: registry.New(
			registry.WithBlobHandler(registry.NewDiskBlobHandler(filepath.Join(up.Dir(), "blobs"))),
			registry.WithReferrersSupport(true),
			registry.Logger(log.New(io.Discard, "", 0)),
		),
	}
	go s.srv.Serve(l) //nolint:errcheck // it ends with http.ErrServerClosed
	return s, nil
}

func (s *server) Close() error { return s.srv.Close() }

// publish makes an image known under its name and puts its signatures beside it.
func (s *server) publish(ctx context.Context, m made, signer signing.Signer) error {
	ref, err := name.NewTag(m.reference, name.StrictValidation)
	if err != nil {
		return err
	}
	repo := ref.RepositoryStr()
	manifest, err := s.up.ReadAll(m.manifest.Digest, 1<<20)
	if err != nil {
		return err
	}
	index, err := s.up.ReadAll(m.index.Digest, 1<<20)
	if err != nil {
		return err
	}
	if err := errors.Join(
		s.put(ctx, repo, m.manifest.Digest, types.OCIManifestSchema1, manifest),
		s.put(ctx, repo, ref.TagStr(), types.OCIImageIndex, index),
	); err != nil {
		return err
	}
	hash, err := v1.NewHash(m.index.Digest)
	if err != nil {
		return err
	}
	artifacts, err := signer.Sign(ctx, ref.Repository.Name(), v1.Descriptor{MediaType: types.OCIImageIndex, Digest: hash, Size: m.index.Size})
	if err != nil {
		return err
	}
	for _, a := range artifacts {
		for digest, b := range a.Blobs {
			if _, err := s.up.Put(ctx, bytes.NewReader(b), store.Descriptor{Digest: digest.String(), Size: int64(len(b))}); err != nil {
				return err
			}
		}
		tag := a.Tag
		if tag == "" {
			tag = a.Descriptor.Digest.String()
		}
		if err := s.put(ctx, repo, tag, a.Descriptor.MediaType, a.Manifest); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) put(ctx context.Context, repo, tag string, mt types.MediaType, body []byte) error {
	if !json.Valid(body) {
		return fmt.Errorf("manifest %s of %s is not JSON", tag, repo)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, s.url+"/v2/"+repo+"/manifests/"+tag, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", string(mt))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return fmt.Errorf("registry answered %s: %s", resp.Status, strings.TrimSpace(string(b)))
	}
	return nil
}
