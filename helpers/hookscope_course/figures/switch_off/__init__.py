"""Switch off one channel of a layer with a click: the first figure of the site."""
