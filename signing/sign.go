package signing

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	cbundle "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/payload"
	"google.golang.org/protobuf/encoding/protojson"
)

// Annotations of a descriptor in an OCI layout's index.json. cosign finds the
// image and its signature in a local layout by kind; the image's own descriptor
// needs KindImageIndex or KindImage under KindAnnotation.
const (
	KindAnnotation = "kind"
	KindImage      = "dev.cosignproject.cosign/image"
	KindImageIndex = "dev.cosignproject.cosign/imageIndex"

	kindSignatures    = "dev.cosignproject.cosign/sigs"
	refNameAnnotation = "org.opencontainers.image.ref.name"
)

// Signer signs manifests by digest. A key pair and the local authority are
// signers; one that asks a certificate authority for an identity can be another.
type Signer interface {
	// Sign takes the repository people know the image by and the descriptor of
	// its top node (media type, digest and size are used). It returns what to
	// write or push beside it.
	Sign(ctx context.Context, repository string, manifest v1.Descriptor) ([]Artifact, error)
}

// Artifact is a signature as an image of its own.
type Artifact struct {
	// Tag is the tag to push the manifest to; empty means by digest only, since
	// it refers to its subject.
	Tag string
	// Descriptor is of Manifest, with the annotations it needs in a layout's
	// index.json. They are not needed in a registry.
	Descriptor v1.Descriptor
	Manifest   []byte
	// Blobs are config and layers, by digest.
	Blobs map[v1.Hash][]byte
}

// credential makes signatures and says what others check them with: a key hint,
// or a certificate chain and a timestamp.
type credential struct {
	sign      func(message []byte) ([]byte, error)
	hint      string
	chain     []*x509.Certificate // leaf first
	timestamp func(sig []byte) ([]byte, error)
}

// artifacts makes the legacy signature image and the bundle that refers to the
// manifest. Old clients and layouts know the first, newer registries and clients
// the second.
func (c credential) artifacts(repository string, manifest v1.Descriptor) ([]Artifact, error) {
	if _, err := parseDigest(manifest.Digest.String()); err != nil {
		return nil, err
	}
	legacy, err := c.legacy(repository, manifest)
	if err != nil {
		return nil, err
	}
	referrer, err := c.bundle(manifest)
	if err != nil {
		return nil, err
	}
	return []Artifact{legacy, referrer}, nil
}

// stamped signs a message and has the signature timestamped where there is a
// timestamp authority.
func (c credential) stamped(message []byte) (sig, timestamp []byte, err error) {
	if sig, err = c.sign(message); err == nil && c.timestamp != nil {
		timestamp, err = c.timestamp(sig)
	}
	return sig, timestamp, err
}

func (c credential) legacy(repository string, manifest v1.Descriptor) (Artifact, error) {
	claim, err := json.Marshal(payload.SimpleContainerImage{Critical: payload.Critical{
		Identity: payload.Identity{DockerReference: repository},
		Image:    payload.Image{DockerManifestDigest: manifest.Digest.String()},
		Type:     payload.CosignSignatureType,
	}})
	if err != nil {
		return Artifact{}, err
	}
	sig, timestamp, err := c.stamped(claim)
	if err != nil {
		return Artifact{}, err
	}
	annotations := map[string]string{static.SignatureAnnotationKey: base64.StdEncoding.EncodeToString(sig)}
	if len(c.chain) > 0 {
		for key, certs := range map[string][]*x509.Certificate{
			static.CertificateAnnotationKey: c.chain[:1],
			static.ChainAnnotationKey:       c.chain[1:],
		} {
			pem, err := cryptoutils.MarshalCertificatesToPEM(certs)
			if err != nil {
				return Artifact{}, err
			}
			annotations[key] = string(pem)
		}
	}
	if timestamp != nil {
		b, err := json.Marshal(cbundle.RFC3161Timestamp{SignedRFC3161Timestamp: timestamp})
		if err != nil {
			return Artifact{}, err
		}
		annotations[static.RFC3161TimestampAnnotationKey] = string(b)
	}

	layer := describe(ctypes.SimpleSigningMediaType, claim)
	layer.Annotations = annotations
	config, err := json.Marshal(v1.ConfigFile{RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{layer.Digest}}})
	if err != nil {
		return Artifact{}, err
	}
	tag := legacyTag(manifest.Digest)
	return assemble(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        describe(types.OCIConfigJSON, config),
		Layers:        []v1.Descriptor{layer},
	}, Artifact{
		Tag:        tag,
		Descriptor: v1.Descriptor{Annotations: map[string]string{KindAnnotation: kindSignatures, refNameAnnotation: tag}},
	}, config, claim)
}

func (c credential) bundle(manifest v1.Descriptor) (Artifact, error) {
	type subject struct {
		Digest map[string]string `json:"digest"`
	}
	statement, err := json.Marshal(struct {
		Type          string    `json:"_type"`
		Subject       []subject `json:"subject"`
		PredicateType string    `json:"predicateType"`
	}{
		"https://in-toto.io/Statement/v1",
		[]subject{{map[string]string{"sha256": manifest.Digest.Hex}}},
		ctypes.CosignSignPredicateType,
	})
	if err != nil {
		return Artifact{}, err
	}
	// DSSE's pre-authentication encoding.
	message := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(ctypes.IntotoPayloadType), ctypes.IntotoPayloadType, len(statement), statement)
	sig, timestamp, err := c.stamped(message)
	if err != nil {
		return Artifact{}, err
	}
	b := &protobundle.Bundle{
		MediaType: bundleMediaType,
		Content: &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
			Payload:     statement,
			PayloadType: ctypes.IntotoPayloadType,
			Signatures:  []*protodsse.Signature{{Sig: sig}},
		}},
		VerificationMaterial: &protobundle.VerificationMaterial{},
	}
	if len(c.chain) > 0 {
		b.VerificationMaterial.Content = &protobundle.VerificationMaterial_Certificate{
			Certificate: &protocommon.X509Certificate{RawBytes: c.chain[0].Raw},
		}
	} else {
		b.VerificationMaterial.Content = &protobundle.VerificationMaterial_PublicKey{
			PublicKey: &protocommon.PublicKeyIdentifier{Hint: c.hint},
		}
	}
	if timestamp != nil {
		b.VerificationMaterial.TimestampVerificationData = &protobundle.TimestampVerificationData{
			Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: timestamp}},
		}
	}
	layer, err := protojson.Marshal(b)
	if err != nil {
		return Artifact{}, err
	}
	// protojson varies its white space from build to build on purpose.
	var compact bytes.Buffer
	if err := json.Compact(&compact, layer); err != nil {
		return Artifact{}, err
	}
	config := []byte("{}")
	return assemble(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        describe(emptyMediaType, config),
		Layers:        []v1.Descriptor{describe(bundleMediaType, compact.Bytes())},
		Subject:       &v1.Descriptor{MediaType: manifest.MediaType, Digest: manifest.Digest, Size: manifest.Size},
		Annotations: map[string]string{
			"dev.sigstore.bundle.content": "dsse-envelope",
			predicateAnnotation:           ctypes.CosignSignPredicateType,
		},
	}, Artifact{Descriptor: v1.Descriptor{ArtifactType: bundleMediaType}}, config, compact.Bytes())
}

// assemble encodes m, with the artifact type that a's descriptor has, and fills in a.
func assemble(m v1.Manifest, a Artifact, blobs ...[]byte) (Artifact, error) {
	raw, err := json.Marshal(struct {
		v1.Manifest
		ArtifactType string `json:"artifactType,omitempty"`
	}{m, a.Descriptor.ArtifactType})
	if err != nil {
		return Artifact{}, err
	}
	d := describe(m.MediaType, raw)
	d.ArtifactType, d.Annotations = a.Descriptor.ArtifactType, a.Descriptor.Annotations
	a.Manifest, a.Descriptor, a.Blobs = raw, d, map[v1.Hash][]byte{}
	for _, b := range blobs {
		a.Blobs[describe("", b).Digest] = b
	}
	return a, nil
}

func describe(mediaType types.MediaType, b []byte) v1.Descriptor {
	h, size, _ := v1.SHA256(bytes.NewReader(b)) // reading from memory can't fail
	return v1.Descriptor{MediaType: mediaType, Digest: h, Size: size}
}

// signMessage signs the SHA-256 of a message. Without a source of randomness an
// ECDSA signature is deterministic (RFC 6979), so the same image and key give
// the same signature bytes.
func signMessage(key crypto.Signer, message []byte) ([]byte, error) {
	sum := sha256.Sum256(message)
	return key.Sign(nil, sum[:], crypto.SHA256)
}
