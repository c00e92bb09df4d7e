"""What can be wrong with a request about events or webhooks."""

from gpuplane.kit.errors import Gone, NotFound, TooManyRequests, Unavailable, Unprocessable


class CursorExpired(Gone):
    """The events after the position a reader asked for are not all kept any more."""

    code = "cursor_expired"


class WebhookNotFound(NotFound):
    """No webhook of that id, or it is not the caller's to see."""

    code = "webhook_not_found"


class WebhookRefused(Unprocessable):
    """The address may not be called from here."""

    code = "webhook_url_refused"


class TooManyStreams(Unavailable):
    """As many readers follow the stream as this server serves."""

    code = "too_many_streams"


class TooManyWebhooks(TooManyRequests):
    """A tenant has as many webhooks as it may."""

    code = "too_many_webhooks"
