package signing

import (
	"bytes"
	"context"
	"crypto"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"
)

// Blob is a file with a detached signature.
type Blob struct {
	// Reference is its address without scheme ("dl.k8s.io/release/…/kubeadm");
	// the policy's patterns apply to it.
	Reference string
	Digest    string // "sha256:<hex>" of the whole file
	// Signature and Certificate are the contents of the .sig file (base64) and
	// of the .cert file (base64 of a PEM certificate, or PEM). Both are empty
	// when the server says that they don't exist.
	Signature, Certificate []byte
}

// TransparencyLog finds the entries that a log has for a detached signature.
type TransparencyLog interface {
	// Find takes the file's digest, the signature (DER) and the PEM certificate.
	// No entry is not an error.
	Find(ctx context.Context, digest v1.Hash, sig, certPEM []byte) ([]LogEntry, error)
}

// LogEntry is an entry of a Rekor v1 log with the log's signed promise, none of
// it checked yet.
type LogEntry struct {
	Body                 []byte `json:"body"`           // canonical JSON
	IntegratedTime       int64  `json:"integratedTime"` // Unix seconds
	LogID                []byte `json:"logID"`          // SHA-256 of the log's public key
	LogIndex             int64  `json:"logIndex"`
	SignedEntryTimestamp []byte `json:"signedEntryTimestamp"`
}

// VerifyBlob checks a file's detached signature. The certificate's short
// validity is judged at the time that the log proves, so the log must be asked;
// a log that can't be read is Unreachable. The policy's exceptions don't apply
// to files. Errors are as for Verify.
func (v *Verifier) VerifyBlob(ctx context.Context, b Blob, log TransparencyLog) (Result, error) {
	res := Result{Reference: b.Reference, Digest: b.Digest, Location: b.Reference + ".sig", Form: FormDetached}
	fail := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("verify signature of %s: %w", b.Reference, err)
	}
	digest, err := parseDigest(b.Digest)
	if err != nil {
		return fail(err)
	}
	rule, err := v.Policy.rule(b.Reference)
	if err != nil {
		return fail(err)
	}
	if rule.key != nil {
		return fail(fmt.Errorf("rule %s has a public key; detached signatures are checked by identity", rule.Pattern))
	}
	v = v.under(rule)
	if done, err := v.checkTrust(rule, &res); err != nil {
		return fail(err)
	} else if done {
		return res, nil
	}
	if len(b.Signature) == 0 && len(b.Certificate) == 0 {
		res.Outcome, res.Detail = Unsigned, "has no detached signature"
		return res, nil
	}

	lookup, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	f := guarded(func() finding { return v.judgeBlob(lookup, rule, b, digest, log) })
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	f.fill(&res)
	return res, nil
}

func (v *Verifier) judgeBlob(ctx context.Context, rule *Rule, b Blob, digest v1.Hash, log TransparencyLog) finding {
	sig, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(b.Signature)))
	if err != nil {
		return wrongSigner("signature: %v", err)
	}
	certPEM := bytes.TrimSpace(b.Certificate)
	if !bytes.HasPrefix(certPEM, []byte("-----BEGIN")) {
		if certPEM, err = base64.StdEncoding.DecodeString(string(certPEM)); err != nil {
			return wrongSigner("certificate: %v", err)
		}
	}
	certs, err := cryptoutils.UnmarshalCertificatesFromPEM(certPEM)
	if err != nil || len(certs) == 0 {
		return wrongSigner("has no certificate, expected %s", rule.wants())
	}
	sum, err := hex.DecodeString(digest.Hex)
	if err != nil {
		return wrongSigner("%v", err)
	}
	// A changed file is told from a strange signer before anyone is asked.
	verifier, err := signature.LoadVerifier(certs[0].PublicKey, crypto.SHA256)
	if err == nil {
		err = verifier.VerifySignature(bytes.NewReader(sig), bytes.NewReader(nil), options.WithDigest(sum))
	}
	if err != nil {
		return finding{outcome: WrongDigest, detail: fmt.Sprintf("signature and certificate don't fit a file with digest %s: %v", digest, err)}
	}

	// A log keeps the certificate in its one canonical encoding.
	if certPEM, err = cryptoutils.MarshalCertificateToPEM(certs[0]); err != nil {
		return wrongSigner("certificate: %v", err)
	}
	entries, err := log.Find(ctx, digest, sig, certPEM)
	if err != nil {
		return finding{outcome: Unreachable, detail: fmt.Sprintf("transparency log: %v", err)}
	}
	// Without an entry nothing tells that the certificate was valid.
	f := checkTimes(certs[0], nil)
	for _, e := range entries {
		entity, err := bundle.NewBundle(&protobundle.Bundle{
			// The only bundle form that takes a promise without proof.
			MediaType: "application/vnd.dev.sigstore.bundle+json;version=0.1",
			Content: &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
				MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: sum},
				Signature:     sig,
			}},
			VerificationMaterial: &protobundle.VerificationMaterial{
				Content: &protobundle.VerificationMaterial_X509CertificateChain{X509CertificateChain: &protocommon.X509CertificateChain{
					Certificates: []*protocommon.X509Certificate{{RawBytes: certs[0].Raw}},
				}},
				TlogEntries: []*protorekor.TransparencyLogEntry{{
					LogIndex:          e.LogIndex,
					LogId:             &protocommon.LogId{KeyId: e.LogID},
					KindVersion:       &protorekor.KindVersion{Kind: "hashedrekord", Version: "0.0.1"},
					IntegratedTime:    e.IntegratedTime,
					InclusionPromise:  &protorekor.InclusionPromise{SignedEntryTimestamp: e.SignedEntryTimestamp},
					CanonicalizedBody: e.Body,
				}},
			},
		})
		if err != nil {
			f = wrongSigner("log entry: %v", err)
			continue
		}
		if f = v.judgeEntity(rule, entity, digest); f.outcome == Verified {
			break
		}
	}
	return f
}

// Rekor asks a Rekor v1 log over HTTP.
type Rekor struct {
	URL string // of the server, for example https://rekor.sigstore.dev
	// Transport carries requests and does its own retries; nil means the default.
	Transport http.RoundTripper
}

// Find implements TransparencyLog by asking for exactly the entry that this
// signature must have made.
func (r Rekor) Find(ctx context.Context, digest v1.Hash, sig, certPEM []byte) ([]LogEntry, error) {
	type object = map[string]any
	query, err := json.Marshal(object{"entries": []object{{
		"apiVersion": "0.0.1", "kind": "hashedrekord",
		"spec": object{
			"data":      object{"hash": object{"algorithm": digest.Algorithm, "value": digest.Hex}},
			"signature": object{"content": sig, "publicKey": object{"content": certPEM}},
		},
	}}})
	if err != nil {
		return nil, err
	}
	u := strings.TrimSuffix(r.URL, "/") + "/api/v1/log/entries/retrieve"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u, bytes.NewReader(query))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := (&http.Client{Transport: r.Transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", u, resp.Status)
	}
	b, err := readAll(resp.Body, maxBlob)
	if err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", u, err)
	}
	var found []map[string]struct {
		Body           []byte `json:"body"`
		IntegratedTime int64  `json:"integratedTime"`
		LogID          string `json:"logID"`
		LogIndex       int64  `json:"logIndex"`
		Verification   struct {
			SignedEntryTimestamp []byte `json:"signedEntryTimestamp"`
		} `json:"verification"`
	}
	if err := json.Unmarshal(b, &found); err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", u, err)
	}
	var entries []LogEntry
	for _, byID := range found {
		for _, e := range byID {
			id, err := hex.DecodeString(e.LogID)
			if err != nil {
				return nil, fmt.Errorf("log id from %s: %w", u, err)
			}
			entries = append(entries, LogEntry{e.Body, e.IntegratedTime, id, e.LogIndex, e.Verification.SignedEntryTimestamp})
		}
	}
	return entries, nil
}
