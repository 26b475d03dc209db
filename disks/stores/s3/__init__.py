"""S3 over HTTP: requests, answers, errors, uploads in parts. The only place that speaks to an S3 server."""
