package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"bobbin/thread"
)

// BucketConfig says where a bucket is. All of it is needed but the endpoint.
type BucketConfig struct {
	Bucket    string
	Endpoint  string // URL of the service; empty: AWS's own of the region
	Region    string
	AccessKey string
	SecretKey string
	PathStyle bool // the bucket stands in the path, not in the host's name, as most servers beside AWS want it
}

// A Bucket keeps files in a bucket of an S3-compatible service. It is safe for concurrent use.
type Bucket struct {
	client *s3.Client
	bucket *string
}

// NewBucket returns a bucket. It does not call the service; Check does.
func NewBucket(cfg BucketConfig) *Bucket {
	opt := s3.Options{
		Region: cfg.Region, UsePathStyle: cfg.PathStyle, RetryMaxAttempts: 3,
		Credentials: aws.NewCredentialsCache(aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: cfg.AccessKey, SecretAccessKey: cfg.SecretKey}, nil
		})),
		// Not every server knows the checksums that the SDK would add by itself; the signature covers the content.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		HTTPClient: awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
			t.ResponseHeaderTimeout = 30 * time.Second
		}),
	}
	if cfg.Endpoint != "" {
		opt.BaseEndpoint = &cfg.Endpoint
	}
	return &Bucket{client: s3.New(opt), bucket: &cfg.Bucket}
}

// Check returns nil if the bucket can be reached with its keys. An error that is not ErrUnavailable has to be mended.
func (b *Bucket) Check(ctx context.Context) error {
	_, err := b.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: b.bucket})
	return explain("check", err)
}

// Put writes a file's content. It is there whole when Put returns nil. After an error it may be there; Delete removes it.
func (b *Bucket) Put(ctx context.Context, id string, content io.Reader) error {
	// One request, so that nothing is left in parts. It needs the length, and to sign it the content, before it starts.
	spool, err := os.CreateTemp("", "bobbin-upload-*")
	if err != nil {
		return fmt.Errorf("files: put: %w: %w", thread.ErrUnavailable, err)
	}
	defer spool.Close()
	defer os.Remove(spool.Name())
	size, err := fill(ctx, spool, content)
	if err != nil {
		return err
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("files: put: %w: %w", thread.ErrUnavailable, err)
	}
	_, err = b.client.PutObject(ctx, &s3.PutObjectInput{Bucket: b.bucket, Key: &id, Body: spool, ContentLength: &size})
	return explain("put", err)
}

// Open returns a file's content of so many bytes, which the caller closes. ErrNotFound: it is not there.
func (b *Bucket) Open(ctx context.Context, id string, size int64) (io.ReadSeekCloser, error) {
	o := &object{ctx: ctx, bucket: b, id: id, size: size}
	return o, o.open()
}

// Delete removes a file's content. It may be gone already.
func (b *Bucket) Delete(ctx context.Context, id string) error {
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: b.bucket, Key: &id})
	if err = explain("delete", err); errors.Is(err, thread.ErrNotFound) {
		return nil
	}
	return err
}

// An object is read from wherever it was sought to, with a request for the rest.
type object struct {
	ctx    context.Context
	bucket *Bucket
	id     string
	size   int64
	at     int64
	body   io.ReadCloser // from at on; nil: not asked for
}

func (o *object) open() error {
	in := &s3.GetObjectInput{Bucket: o.bucket.bucket, Key: &o.id}
	if o.at > 0 {
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", o.at))
	}
	out, err := o.bucket.client.GetObject(o.ctx, in)
	if err != nil {
		return explain("open", err)
	}
	o.body = out.Body
	return nil
}

func (o *object) Read(p []byte) (int, error) {
	if o.at >= o.size {
		return 0, io.EOF
	}
	if o.body == nil {
		if err := o.open(); err != nil {
			return 0, err
		}
	}
	n, err := o.body.Read(p)
	o.at += int64(n)
	switch {
	case err == io.EOF && o.at < o.size: //nolint:errorlint // the very value
		err = io.ErrUnexpectedEOF
		fallthrough
	case err != nil && err != io.EOF: //nolint:errorlint // likewise
		err = fmt.Errorf("files: read: %w: %w", thread.ErrUnavailable, err)
	}
	return n, err
}

func (o *object) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += o.at
	case io.SeekEnd:
		offset += o.size
	}
	if offset < 0 {
		return o.at, errors.New("files: sought before the beginning")
	}
	if offset != o.at {
		_ = o.Close()
		o.at = offset
	}
	return offset, nil
}

func (o *object) Close() error {
	if o.body == nil {
		return nil
	}
	err := o.body.Close()
	o.body = nil
	return err
}

// explain turns the service's errors into ours. What it answers may hold addresses, and nothing of a file's content.
func explain(op string, err error) error {
	var answer *awshttp.ResponseError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer) && answer.HTTPStatusCode() == http.StatusNotFound:
		return fmt.Errorf("files: %s: %w", op, thread.ErrNotFound)
	case errors.As(err, &answer) && answer.HTTPStatusCode() >= 400 && answer.HTTPStatusCode() < 500:
		return fmt.Errorf("files: %s: the bucket refuses: %w", op, err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("files: %s: %w", op, err)
	}
	return fmt.Errorf("files: %s: %w: %w", op, thread.ErrUnavailable, err)
}
