"""Show values as images and tables with a text description: feature maps, figures, rows."""

from hookscope.pictures.feature_maps import FeatureGrid, feature_grid
from hookscope.pictures.images import image_grid
from hookscope.pictures.picture import Picture, Result, Rows, Table

__all__ = ["FeatureGrid", "Picture", "Result", "Rows", "Table", "feature_grid", "image_grid"]
