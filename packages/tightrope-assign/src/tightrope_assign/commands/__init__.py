"""Commands of this plug-in; nothing else imports them."""
