"""Parts from one machine to another, by HTTP: signed requests, ranges, digests. Nothing else imports aiohttp."""
