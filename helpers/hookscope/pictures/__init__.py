"""Show numbers as pictures and tables that say in words what they show: feature maps, figures, rows."""

from hookscope.pictures.grid import FeatureGrid, feature_grid
from hookscope.pictures.images import image_grid
from hookscope.pictures.picture import Picture, Rows, Table, Tabled

__all__ = ["FeatureGrid", "Picture", "Rows", "Table", "Tabled", "feature_grid", "image_grid"]
